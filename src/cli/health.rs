//! `walpost health`: the health check of a container, by the program itself.

use super::args::HealthArguments;
use super::stdout::print;
use super::{Exit, block_on, complain, configuration};
use crate::admin;

pub(super) fn command(arguments: HealthArguments) -> Exit {
    let config = match configuration(&arguments.options.into()) {
        Ok(config) => config,
        Err(exit) => return exit,
    };
    let Some(address) = config.admin.listen else {
        complain("there are no endpoints: admin.listen is `off`");
        return Exit::Failure;
    };
    let path = if arguments.ready { "/readyz" } else { "/livez" };
    match block_on(admin::ask(&address, path)) {
        Ok((status, body)) => {
            let printed = print(&String::from_utf8_lossy(&body));
            if status.is_success() { printed } else { Exit::Failure }
        }
        Err(error) => {
            complain(&error.to_string());
            Exit::Failure
        }
    }
}
