//! tardis-rs against a machine: URL FROM TO DATA-TYPE... Prints each message of XBTUSD as JSON, as its types hold it.

use futures_util::{pin_mut, StreamExt};
use tardis_rs::machine::{Client, ReplayNormalizedRequestOptions};
use tardis_rs::Exchange;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let options = ReplayNormalizedRequestOptions {
        exchange: Exchange::Bitmex,
        symbols: Some(vec!["XBTUSD".to_string()]),
        from: given[1].parse()?,
        to: given[2].parse()?,
        data_types: given[3..].to_vec(),
        with_disconnect_messages: Some(true),
    };
    let messages = Client::new(&given[0]).replay_normalized(vec![options]).await?;
    pin_mut!(messages);
    while let Some(message) = messages.next().await {
        println!("{}", serde_json::to_string(&message?)?);
    }
    Ok(())
}
