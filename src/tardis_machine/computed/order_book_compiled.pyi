from .order_book import OrderBook as OrderBook
