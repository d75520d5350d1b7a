from .computer import compute_each as compute_each
