//! `top`: domains and devices, again and again.
//!
//! - [`sample`] is what happened between two looks.
//! - [`text`] shows it as lines, [`screen`] on a terminal.

mod sample;
mod screen;
mod text;

use crate::cli::TopArguments;
use crate::control::{Client, Running, choose};
use crate::{interrupt, output, printable};
use anyhow::{Context, Result};
use ratatui::crossterm::event::{self, Event as Input, KeyEventKind};
use sample::Sample;
use screen::Screen;
use sluice_abi::channel::{Command, Event};
use sluice_abi::report::Report;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// How long a key may wait.
const KEY: Duration = Duration::from_millis(50);

/// Shows domains and devices again and again: on a screen where there is one, else as text.
pub fn top(arguments: &TopArguments) -> Result<()> {
    let instance = choose(arguments.instance.as_ref())?;
    let client = Client::connect(&instance)?;
    let is_screen = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if !is_screen || arguments.json || arguments.count.is_some() {
        return lines(client, &instance, arguments);
    }
    interrupt::count_from_now_on()?;
    let mut terminal = ratatui::try_init().context("the terminal cannot be used")?;
    let ended = watch(client, &instance, arguments.interval, &mut terminal);
    ratatui::restore();
    match ended? {
        End::Left => Ok(()),
        End::Gone => output::print(format_args!("{} has ended\n", instance.name)),
    }
}

/// One look after the other, each as a text or as a line of JSON.
fn lines(mut client: Client, instance: &Running, arguments: &TopArguments) -> Result<()> {
    let mut before = client.report()?;
    let mut looks = 0;
    while arguments.count.is_none_or(|count| looks < count) {
        std::thread::sleep(arguments.interval);
        let Ok(now) = client.report() else {
            output::note(format_args!("{} has ended", instance.name));
            return Ok(());
        };
        let sample = Sample::between(&instance.name, Some(&before), &now);
        if arguments.json {
            output::print(printable::json_line(&sample)?)?;
        } else {
            output::print(text::plain(&sample))?;
        }
        before = now;
        looks += 1;
    }
    Ok(())
}

/// Why the screen was left.
enum End {
    /// The user wanted to.
    Left,
    /// The instance has ended.
    Gone,
}

/// The screen, until the user leaves or the instance ends.
fn watch(
    mut client: Client,
    instance: &Running,
    interval: Duration,
    terminal: &mut ratatui::DefaultTerminal,
) -> Result<End> {
    let mut screen = Screen::default();
    let mut shown: Option<Sample> = None;
    let mut before: Option<Report> = None;
    let mut asked = None;
    let mut due = Instant::now();
    while interrupt::count() == 0 {
        // A look that is slow to come keeps no key waiting.
        match asked {
            None if Instant::now() >= due => match client.request(Command::Report) {
                Ok(seq) => asked = Some(seq),
                Err(_) => return Ok(End::Gone),
            },
            None => {}
            Some(seq) => match client.poll_event(Instant::now() + KEY) {
                Ok(Some(Event::Report { seq: answered, report })) if answered == seq => {
                    asked = None;
                    due = Instant::now() + interval;
                    if !screen.is_held() {
                        shown = Some(Sample::between(&instance.name, before.as_ref(), &report));
                        before = Some(report);
                    }
                }
                Ok(_) => {}
                Err(_) => return Ok(End::Gone),
            },
        }
        if let Some(sample) = &shown {
            terminal.draw(|frame| screen.draw(frame, sample)).context("the terminal cannot be used")?;
        }
        let patience = if asked.is_some() { Duration::ZERO } else { KEY };
        while event::poll(patience).context("the terminal cannot be read")? {
            let input = event::read().context("the terminal cannot be read")?;
            if let Input::Key(key) = input
                && key.kind != KeyEventKind::Release
                && !screen.key(key)
            {
                return Ok(End::Left);
            }
            if patience > Duration::ZERO {
                break;
            }
        }
    }
    Ok(End::Left)
}
