//! The page: a head, the guests, the devices, and below them the end of a text.

use crate::tail::wrap;
use crate::{Canvas, Colour, Lines, Style};
use alloc::format;
use alloc::string::String;
use sluice_abi::report::{DeviceReport, DomainReport, DomainState, Report};

/// What the lower part of the page shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    /// The log of the hypervisor.
    #[default]
    Log,
    /// The console of the guest with this index.
    Console(usize),
}

/// Where the machine is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Guests run.
    Running,
    /// All guests have ended, and the machine waits for somebody to switch it off.
    Ended,
}

/// Rows of the lower part that are kept free of guests and devices.
const LEAST_TEXT: usize = 8;

/// Columns of the table: names, states, the processors' time, restarts, the reason of an end.
const COLUMNS: [usize; 5] = [2, 20, 33, 40, 50];

/// What a page is made of.
#[derive(Clone, Copy)]
pub struct Page<'a> {
    /// State of the machine.
    pub report: &'a Report,
    /// And some time before.
    pub before: Option<&'a Report>,
    /// Where the machine is in its life.
    pub progress: Progress,
    /// What the lower part shows.
    pub view: View,
    /// The text of that.
    pub text: &'a dyn Lines,
}

impl Page<'_> {
    /// Draws the page on a blank canvas, from the top: a screen that is too small shows fewer guests, and says how many.
    pub fn draw(&self, canvas: &mut Canvas) {
        self.head(canvas);
        let most = canvas.rows().saturating_sub(LEAST_TEXT);
        let row = self.domains(canvas, 2, most);
        let row = self.devices(canvas, row, most);
        self.bar(canvas, row);
        self.lower(canvas, row + 1);
    }

    fn head(&self, canvas: &mut Canvas) {
        let seconds = self.report.uptime_ns / 1_000_000_000;
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        let end = match self.progress {
            Progress::Running => "",
            Progress::Ended => "   all guests have ended",
        };
        let text = format!(
            " Sluice {}   up {hours}:{minutes:02}:{seconds:02}   {}   {} MiB free{end}",
            env!("CARGO_PKG_VERSION"),
            count(self.report.cpus, "processor"),
            self.report.free_memory >> 20,
        );
        canvas.fill(0, Style::BAR);
        canvas.put(0, 0, &text, Style::BAR);
    }

    /// Draws the guests from a row on, up to row `most`. Returns the row after them.
    fn domains(&self, canvas: &mut Canvas, mut row: usize, most: usize) -> usize {
        let titles = ["guest", "state", "time", "restarts", ""];
        for (title, column) in titles.into_iter().zip(COLUMNS) {
            canvas.put(row - 1, column, title, Style::on_black(Colour::Cyan));
        }
        for (index, domain) in self.report.domains.iter().enumerate() {
            let left = self.report.domains.len() - index;
            if row + 1 >= most && left > 1 {
                canvas.put(row, COLUMNS[0], &format!("and {left} more"), Style::PLAIN);
                return row + 2;
            }
            let style = Style::on_black(match domain.state {
                DomainState::Running => Colour::Green,
                DomainState::Crashed | DomainState::Restarting => Colour::Red,
                DomainState::Paused => Colour::Yellow,
                _ => Colour::Grey,
            });
            canvas.put(row, 0, &key(index), Style::on_black(Colour::White));
            let texts: [&str; 5] = [
                &domain.name,
                domain.state.word(),
                &self.time(index, domain),
                &format!("{}", domain.restarts),
                &domain.end_reason,
            ];
            for (text, column) in texts.into_iter().zip(COLUMNS) {
                canvas.put(row, column, text, style);
            }
            row += 1;
        }
        row + 1
    }

    /// The time that a guest's processors had of the last period, a hundred percent being one processor.
    fn time(&self, index: usize, domain: &DomainReport) -> String {
        let before = self.before.and_then(|before| Some((before.uptime_ns, before.domains.get(index)?)));
        let Some((since, earlier)) = before else { return String::new() };
        let period = self.report.uptime_ns.saturating_sub(since);
        let ran = domain.run_ns.saturating_sub(earlier.run_ns);
        let percent = u128::from(ran) * 100;
        percent.checked_div(period.into()).map(|percent| format!("{percent} %")).unwrap_or_default()
    }

    fn devices(&self, canvas: &mut Canvas, mut row: usize, most: usize) -> usize {
        let first = row;
        for device in self.report.devices.iter().take(most.saturating_sub(first)) {
            canvas.put(row, COLUMNS[0], &device.name, Style::PLAIN);
            canvas.put(row, COLUMNS[1], &users(device), Style::PLAIN);
            row += 1;
        }
        row + usize::from(row != first)
    }

    fn bar(&self, canvas: &mut Canvas, row: usize) {
        let name = |index: usize| self.report.domains.get(index).map_or("?", |domain| domain.name.as_str());
        let title = match self.view {
            View::Log => " log".into(),
            View::Console(index) => format!(" console of {}", name(index)),
        };
        let off = match self.progress {
            Progress::Running => "",
            Progress::Ended => "   F12: off",
        };
        canvas.fill(row, Style::BAR);
        canvas.put(row, 0, &title, Style::BAR);
        let keys = format!("F1-F9: console   F10: log{off} ");
        canvas.put(row, canvas.columns().saturating_sub(keys.len()), &keys, Style::BAR);
    }

    /// Draws the end of the text below a row.
    fn lower(&self, canvas: &mut Canvas, first: usize) {
        let (columns, rows) = (canvas.columns(), canvas.rows().saturating_sub(first));
        wrap(self.text, columns, rows, |row, line| {
            canvas.put(first + row, 0, line, Style::PLAIN);
        });
    }
}

/// The function key that shows the console of a guest.
fn key(index: usize) -> String {
    if index < 9 { format!("{}", index + 1) } else { String::new() }
}

/// So many of something.
fn count(number: u16, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Who uses a device, and who has it now.
fn users(device: &DeviceReport) -> String {
    let mut text = device.model.clone();
    for share in &device.shares {
        text += "  ";
        text += &share.domain;
        if device.holder.as_ref() == Some(&share.domain) {
            text += " (has it)";
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tail;
    use alloc::vec;
    use alloc::vec::Vec;
    use sluice_abi::report::ShareReport;

    fn report(guests: usize) -> Report {
        let domain = |index: usize| DomainReport {
            name: format!("guest{index}"),
            state: DomainState::Running,
            run_ns: 1_500_000_000 * index as u64,
            ..DomainReport::default()
        };
        let share = |domain: &str| ShareReport { domain: domain.into(), ..ShareReport::default() };
        let device = DeviceReport {
            name: "nic0".into(),
            model: "ne2000".into(),
            holder: Some("guest1".into()),
            shares: vec![share("guest0"), share("guest1")],
            ..DeviceReport::default()
        };
        Report {
            uptime_ns: 3_723_000_000_000,
            cpus: 2,
            free_memory: 512 << 20,
            domains: (0..guests).map(domain).collect(),
            devices: vec![device],
            ..Report::default()
        }
    }

    fn rows(page: Page<'_>, rows: usize) -> Vec<String> {
        let mut canvas = Canvas::new(80, rows);
        page.draw(&mut canvas);
        (0..rows).map(|row| canvas.text(row)).collect()
    }

    fn log() -> Tail<32, 100> {
        let mut log = Tail::new();
        (0..40).for_each(|line| {
            log.push(format!("line {line}\n").as_bytes());
        });
        log
    }

    #[test]
    fn a_page_shows_guests_devices_and_the_end_of_the_log() {
        let mut now = report(2);
        let before = Report { uptime_ns: now.uptime_ns - 2_000_000_000, ..report(0) };
        let before = Report { domains: vec![DomainReport::default(); 2], ..before };
        now.domains[0].state = DomainState::Crashed;
        now.domains[0].end_reason = "triple fault".into();
        let log = log();
        let page = Page {
            report: &now,
            before: Some(&before),
            progress: Progress::Running,
            view: View::Log,
            text: &log,
        };
        let rows = rows(page, 25);
        let head =
            format!(" Sluice {}   up 1:02:03   2 processors   512 MiB free", env!("CARGO_PKG_VERSION"));
        assert_eq!(rows[0], head);
        assert_eq!(rows[1], "  guest             state        time   restarts");
        assert_eq!(rows[2], "1 guest0            crashed      0 %    0         triple fault");
        assert_eq!(rows[3], "2 guest1            running      75 %   0");
        assert_eq!(rows[5], "  nic0              ne2000  guest0  guest1 (has it)");
        assert_eq!(rows[7], format!(" log{}F1-F9: console   F10: log", " ".repeat(50)));
        assert_eq!((rows[8].as_str(), rows[24].as_str()), ("line 23", "line 39"));
    }

    #[test]
    fn many_guests_leave_room_for_the_text() {
        let (now, log) = (report(64), log());
        let page = Page {
            report: &now,
            before: None,
            progress: Progress::Ended,
            view: View::Console(70),
            text: &log,
        };
        let rows = rows(page, 25);
        assert!(rows[0].ends_with("all guests have ended"));
        assert_eq!(rows[10], "9 guest8            running             0");
        assert_eq!(rows[11], "  guest9            running             0");
        assert_eq!(rows[16], "  and 50 more");
        assert!(rows[18].starts_with(" console of ?") && rows[18].ends_with("F12: off"));
        assert_eq!(rows[24], "line 39");
    }

    #[test]
    fn nothing_is_too_small() {
        let (now, log) = (report(9), log());
        let page =
            Page { report: &now, before: None, progress: Progress::Running, view: View::Log, text: &log };
        for (columns, rows) in [(0, 0), (1, 1), (5, 3), (80, 9), (200, 100)] {
            page.draw(&mut Canvas::new(columns, rows));
        }
    }

    #[test]
    fn a_line_that_is_being_written_is_shown() {
        let now = report(0);
        let mut text = Tail::<4, 20>::new();
        text.push(b"Debian\r\nalice login: ");
        let page = Page {
            report: &now,
            before: None,
            progress: Progress::Running,
            view: View::Console(0),
            text: &text,
        };
        let rows = rows(page, 12);
        let bar = rows.iter().position(|row| row.starts_with(" console of ?")).unwrap();
        assert_eq!(rows[bar + 1..], ["Debian", "alice login:", "", "", "", ""]);
    }
}
