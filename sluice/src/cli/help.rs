//! The help texts: commands in groups, and under the name by which they were called.

use super::Cli;
use clap::{CommandFactory, FromArgMatches};
use std::fmt::Write;

/// All commands, by what people want.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Run", &["run", "attach", "check", "shutdown", "control"]),
    ("Look", &["ps", "info", "top", "logs", "devices", "report", "metrics"]),
    (
        "Steer",
        &[
            "create",
            "start",
            "stop",
            "pause",
            "resume",
            "restart",
            "destroy",
            "attach-device",
            "detach-device",
            "vif",
            "focus",
            "console",
            "ssh",
        ],
    ),
    (
        "Build and test",
        &[
            "build",
            "image",
            "bundle",
            "fetch",
            "rootfs",
            "serve",
            "test",
            "bench",
            "mutate",
            "analyze",
            "threshold",
            "screens",
            "completions",
            "man",
        ],
    ),
];

/// How the command is called in the texts.
const WRITTEN: &str = "cargo sluice";

/// How it was called: by cargo, which says so, or as a program of its own.
fn called() -> &'static str {
    if std::env::var_os("CARGO").is_some() { WRITTEN } else { "sluice" }
}

/// The command line with its texts.
pub fn command() -> clap::Command {
    named(called())
}

fn named(name: &'static str) -> clap::Command {
    let command = Cli::command();
    let groups = groups(&command);
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}Options:\n{{options}}{{after-help}}"
    );
    let subcommands: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    let mut command = command.help_template(template).bin_name(name);
    for subcommand in subcommands {
        command = command.mut_subcommand(subcommand, |subcommand| {
            match subcommand.get_after_help().map(|text| text.to_string().replace(WRITTEN, name)) {
                Some(text) => subcommand.after_help(text),
                None => subcommand,
            }
        });
    }
    command
}

fn groups(command: &clap::Command) -> String {
    let width = command.get_subcommands().map(|sub| sub.get_name().len()).max().unwrap_or(0);
    let mut text = String::new();
    for (title, names) in GROUPS {
        let _ = writeln!(text, "{title}:");
        for name in names {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {name:width$}  {about}");
        }
        text.push('\n');
    }
    text
}

/// Reads the command line; ends the program where it is wrong, or where help was wanted.
pub fn parse() -> Cli {
    let matches = command().get_matches();
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_command_is_in_one_group() {
        let command = named("sluice");
        let shown: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let known: BTreeSet<&str> =
            command.get_subcommands().filter(|sub| !sub.is_hide_set()).map(clap::Command::get_name).collect();
        assert_eq!(shown.iter().copied().collect::<BTreeSet<_>>(), known);
        assert_eq!(shown.len(), known.len());
        let help = named("sluice").render_help().to_string();
        assert!(help.contains("\nSteer:\n  create"), "{help}");
    }

    #[test]
    fn the_texts_say_what_to_type() {
        let mut command = named("sluice");
        let run = command.find_subcommand_mut("run").unwrap();
        assert!(run.render_help().to_string().contains("  sluice run examples/two-guests.toml\n"));
        let mut command = named(WRITTEN);
        let run = command.find_subcommand_mut("run").unwrap();
        assert!(run.render_help().to_string().contains("  cargo sluice run examples/two-guests.toml\n"));
    }

    #[test]
    fn the_command_line_is_sound() {
        named("sluice").debug_assert();
    }
}
