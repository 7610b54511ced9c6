//! A look on a terminal: colours, an order that keys choose, a line of help.

use super::sample::{DomainSample, Sample};
use super::text;
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use sluice_abi::report::DomainState;
use std::cmp::Ordering;

/// Lines that Page Up and Page Down move by.
const PAGE: u16 = 10;

/// What the domains are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sort {
    /// As in the configuration.
    #[default]
    Given,
    /// By a column of the table.
    Column(usize),
}

/// Keys and the columns that they sort by.
const KEYS: [(char, usize); 6] = [('g', 0), ('s', 1), ('c', 2), ('e', 3), ('i', 4), ('r', 6)];

/// Fits a terminal of 80 columns.
const HELP: &str = " q leave  sort g guest s state c cpu e exits i interrupts r refused  space hold";

/// What the user has chosen.
#[derive(Debug, Default)]
pub struct Screen {
    sort: Sort,
    /// The first line of the tables that is shown.
    scroll: u16,
    /// What is shown stays.
    is_held: bool,
}

impl Screen {
    /// What is shown stays.
    pub const fn is_held(&self) -> bool {
        self.is_held
    }

    /// Takes a key; false if the user leaves.
    pub fn key(&mut self, key: KeyEvent) -> bool {
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
            KeyCode::Char(' ') => self.is_held = !self.is_held,
            KeyCode::Up | KeyCode::Char('k') => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.scroll = self.scroll.saturating_add(1),
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(PAGE),
            KeyCode::PageDown => self.scroll = self.scroll.saturating_add(PAGE),
            KeyCode::Char(pressed) => {
                if let Some((_, column)) = KEYS.iter().find(|(key, _)| *key == pressed) {
                    let chosen = Sort::Column(*column);
                    self.sort = if self.sort == chosen { Sort::Given } else { chosen };
                }
            }
            _ => {}
        }
        true
    }

    /// Draws a look.
    pub fn draw(&mut self, frame: &mut Frame, sample: &Sample) {
        let [head, body, help] =
            Layout::vertical([Constraint::Length(2), Constraint::Min(0), Constraint::Length(1)])
                .areas(frame.area());
        let held = if self.is_held { "  (held)" } else { "" };
        let title = Line::from(vec![format!(" {}", text::head(sample)).bold(), held.yellow()]);
        frame.render_widget(Paragraph::new(title), head);
        let lines = self.lines(sample);
        let most = u16::try_from(lines.len()).unwrap_or(u16::MAX).saturating_sub(body.height);
        self.scroll = self.scroll.min(most);
        frame.render_widget(Paragraph::new(lines).scroll((self.scroll, 0)), body);
        frame.render_widget(Paragraph::new(HELP).style(Style::new().reversed()), help);
    }

    fn lines(&self, sample: &Sample) -> Vec<Line<'static>> {
        let mut domains: Vec<&DomainSample> = sample.domains.iter().collect();
        let mut sorted = None;
        if let Sort::Column(column) = self.sort {
            sorted = Some(column);
            domains.sort_by(|a, b| order(column, a, b));
        }
        let rows = domains.into_iter().map(|domain| styled_domain(domain).to_vec()).collect();
        let mut lines = table(&text::DOMAINS, sorted, rows);
        for device in &sample.devices {
            lines.push(Line::default());
            lines.push(Line::from(format!("  {}", text::device(device)).cyan()));
            let rows = device.shares.iter().map(|share| {
                let has_it = device.holder.as_ref() == Some(&share.domain);
                let style = if has_it { Style::new().green() } else { Style::new() };
                text::share(share).into_iter().map(|cell| Span::styled(cell, style)).collect()
            });
            lines.extend(table(&text::SHARES, None, rows.collect()));
        }
        lines
    }
}

/// The greatest number first, names by the alphabet.
fn order(column: usize, a: &DomainSample, b: &DomainSample) -> Ordering {
    let number = |domain: &DomainSample| match column {
        3 => domain.exits_per_second,
        4 => domain.interrupts_per_second,
        _ => domain.refused,
    };
    match column {
        0 => a.name.cmp(&b.name),
        1 => text::domain(a)[1].cmp(&text::domain(b)[1]),
        2 => b.cpu_percent.total_cmp(&a.cpu_percent),
        _ => number(b).cmp(&number(a)),
    }
}

fn styled_domain(domain: &DomainSample) -> Vec<Span<'static>> {
    let state = match domain.state {
        DomainState::Created => Style::new().fg(Color::Blue),
        DomainState::Running => Style::new().green(),
        DomainState::Paused => Style::new().yellow(),
        DomainState::PoweredOff => Style::new().dim(),
        DomainState::Destroyed | DomainState::Crashed | DomainState::Restarting => Style::new().red().bold(),
    };
    let busy = if domain.cpu_percent >= 90.0 { Style::new().yellow() } else { Style::new() };
    let refused = if domain.is_refused_now { Style::new().red() } else { Style::new() };
    let style = |column: usize| match column {
        0 => Style::new().bold(),
        1 => state,
        2 => busy,
        6 => refused,
        _ => Style::new(),
    };
    text::domain(domain)
        .into_iter()
        .enumerate()
        .map(|(column, cell)| Span::styled(cell, style(column)))
        .collect()
}

/// Aligned lines: the first column to the left, the others to the right.
fn table(headings: &[&str], sorted: Option<usize>, rows: Vec<Vec<Span<'static>>>) -> Vec<Line<'static>> {
    let heading = |(column, text): (usize, &&str)| {
        let style = Style::new().bold();
        Span::styled(
            (*text).to_owned(),
            if sorted == Some(column) { style.reversed() } else { style.underlined() },
        )
    };
    let rows: Vec<Vec<Span>> =
        [headings.iter().enumerate().map(heading).collect()].into_iter().chain(rows).collect();
    let widest =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(Span::width).max().unwrap_or(0);
    let widths: Vec<usize> = (0..headings.len()).map(widest).collect();
    let line = |row: Vec<Span<'static>>| {
        let mut spans = Vec::new();
        for (column, (span, width)) in row.into_iter().zip(&widths).enumerate() {
            let space = " ".repeat(2 + width - span.width());
            if column == 0 {
                spans.extend([Span::raw("  "), span, Span::raw(space[2..].to_owned())]);
            } else {
                spans.extend([Span::raw(space), span]);
            }
        }
        Line::from(spans)
    };
    rows.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::buffer::Buffer;
    use ratatui::crossterm::event::KeyCode;
    use sluice_abi::report::{Count, DeviceReport, DomainReport, Report, ShareReport};

    fn sample() -> Sample {
        let domain = |name: &str, state, run_ns, exits| DomainReport {
            name: name.into(),
            state,
            run_ns,
            exits: vec![Count { name: "cpuid".into(), value: exits }],
            refused: vec![Count { name: "port".into(), value: exits / 1000 }],
            ..DomainReport::default()
        };
        let share = |domain: &str| ShareReport {
            domain: domain.into(),
            mode: "vpio".into(),
            ..ShareReport::default()
        };
        let now = Report {
            uptime_ns: 1_000_000_000,
            cpus: 2,
            free_memory: 512 << 20,
            domains: vec![
                domain("bob", DomainState::Running, 950_000_000, 10),
                domain("alice", DomainState::Crashed, 0, 1234),
                domain("carol", DomainState::Paused, 100_000_000, 500),
            ],
            devices: vec![DeviceReport {
                name: "nic0".into(),
                model: "ne2000".into(),
                holder: Some("bob".into()),
                shares: vec![share("alice"), share("bob")],
                ..DeviceReport::default()
            }],
            ..Report::default()
        };
        Sample::between("demo", None, &now)
    }

    fn drawn(screen: &mut Screen, width: u16, height: u16) -> Buffer {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame, &sample())).unwrap();
        terminal.backend().buffer().clone()
    }

    fn rows(buffer: &Buffer) -> Vec<String> {
        let row = |y| (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..buffer.area.height).map(|y| row(y).trim_end().to_owned()).collect()
    }

    fn press(screen: &mut Screen, key: char) -> bool {
        screen.key(KeyCode::Char(key).into())
    }

    /// The first words of the rows of guests.
    fn guests(screen: &mut Screen) -> Vec<String> {
        let rows = rows(&drawn(screen, 120, 20));
        rows[3..6].iter().map(|row| row.split_whitespace().next().unwrap_or("").to_owned()).collect()
    }

    #[test]
    fn guests_devices_and_keys_are_shown() {
        let rows = rows(&drawn(&mut Screen::default(), 120, 14));
        assert_eq!(rows[0], " demo: up 1.0 s, 2 processors, 512 MiB free");
        assert_eq!(rows[2], "  guest    state   cpu  exits/s  interrupts/s  most exits  refused");
        assert_eq!(rows[3], "  bob    running  95 %       10             0       cpuid        0");
        assert_eq!(rows[7], "  nic0 (ne2000): held by bob, 0 handoffs/s, 0 interrupts/s");
        assert_eq!(rows[13], HELP);
        assert!(HELP.len() <= 80);
    }

    #[test]
    fn states_have_colours() {
        let buffer = drawn(&mut Screen::default(), 120, 14);
        let rows = rows(&buffer);
        let colour = |y: usize, word: &str| {
            let x = rows[y].find(word).unwrap_or_else(|| panic!("{word} in {}", rows[y]));
            buffer[(u16::try_from(x).unwrap(), u16::try_from(y).unwrap())].fg
        };
        assert_eq!(colour(3, "running"), Color::Green);
        assert_eq!(colour(4, "crashed"), Color::Red);
        assert_eq!(colour(5, "paused"), Color::Yellow);
        assert_eq!(colour(3, "95 %"), Color::Yellow, "it keeps a processor busy");
        assert_eq!(colour(4, "1,234"), Color::Reset);
        assert_eq!(
            (colour(9, "alice"), colour(10, "bob")),
            (Color::Reset, Color::Green),
            "who has the device"
        );
    }

    #[test]
    fn keys_sort_and_the_same_key_goes_back() {
        let mut screen = Screen::default();
        assert_eq!(guests(&mut screen), ["bob", "alice", "carol"]);
        for (key, sorted) in [
            ('g', ["alice", "bob", "carol"]),
            ('c', ["bob", "carol", "alice"]),
            ('e', ["alice", "carol", "bob"]),
        ] {
            assert!(press(&mut screen, key));
            assert_eq!(guests(&mut screen), sorted, "{key}");
        }
        press(&mut screen, 'e');
        assert_eq!(guests(&mut screen), ["bob", "alice", "carol"]);
    }

    #[test]
    fn a_low_terminal_scrolls_to_the_end_and_no_further() {
        let mut screen = Screen::default();
        for _ in 0..3 {
            assert!(screen.key(KeyCode::PageDown.into()));
        }
        let low = rows(&drawn(&mut screen, 80, 6));
        assert!(low[4].starts_with("  bob"), "the last row of the last table: {low:?}");
        screen.key(KeyCode::Up.into());
        assert!(rows(&drawn(&mut screen, 80, 6))[4].starts_with("  alice"));
        // Neither does one with no room at all fail.
        drawn(&mut screen, 1, 1);
    }

    #[test]
    fn some_keys_leave_and_space_holds() {
        let mut screen = Screen::default();
        assert!(press(&mut screen, ' ') && screen.is_held());
        assert!(rows(&drawn(&mut screen, 80, 10))[0].ends_with("(held)"));
        assert!(!press(&mut screen, 'q'));
        assert!(!screen.key(KeyCode::Esc.into()));
        assert!(!screen.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
        assert!(press(&mut screen, 'c') && press(&mut screen, 'x'));
    }
}
