//! `keylane backup`: asks a running server for a live copy of its queues and stores.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::cli::{BAD_USAGE, BackupArgs, OK};
use crate::client;

/// Exit code 0 when the copy is complete and on disk.
pub(crate) fn run(args: &BackupArgs) -> u8 {
    // Where the server stands is not where this command was called.
    let file = std::path::absolute(&args.file).ok();
    let Some(file) = file.as_deref().and_then(std::path::Path::to_str) else {
        eprintln!("keylane: {}: name a new file", args.file.display());
        return BAD_USAGE;
    };
    let path = format!(
        "/api/v1/backup?file={}",
        utf8_percent_encode(file, NON_ALPHANUMERIC)
    );
    match client::post(&args.server.url, &path) {
        Ok(answer) if answer.code() == OK => {
            println!("{file}");
            OK
        }
        Ok(answer) => {
            eprintln!("keylane: {}", answer.detail());
            answer.code()
        }
        Err(none) => {
            eprintln!("keylane: {}", none.text);
            none.code
        }
    }
}
