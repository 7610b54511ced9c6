//! Bar charts as SVG, without anything that draws them: panels below each other, each with a scale of its own.

use super::record::shown;
use crate::workspace::{root, write_whole};
use anyhow::Result;
use std::fmt::Write;

/// Some bars that are compared with each other.
pub struct Panel {
    /// What is compared.
    pub title: String,
    /// Names and values.
    pub bars: Vec<(String, f64)>,
}

/// Widths of the picture, of names, and of the longest bar.
const WIDTH: f64 = 720.0;
const NAMES: f64 = 150.0;
const LONGEST: f64 = 460.0;
/// Heights of the picture's title, a panel's title, a bar with its gap, and the gap behind a panel.
const TITLE: f64 = 44.0;
const HEADING: f64 = 22.0;
const BAR: f64 = 18.0;
const GAP: f64 = 12.0;

/// A colour for each way to share and each hypervisor: the same in all pictures.
fn colour(name: &str) -> &'static str {
    match name.split(' ').next().unwrap_or_default() {
        "native" => "#7f7f7f",
        "passthrough" => "#4c9f70",
        "vpio" | "vpio-amd" | "vpio-open" | "sluice" => "#2f6db5",
        "emulated" => "#d9822b",
        "kvm" => "#a63d40",
        "xen" => "#c9a227",
        _ => "#6a5acd",
    }
}

/// Writes `bench/plots/NAME.svg`; nothing if there is nothing to show.
pub fn write(name: &str, title: &str, panels: &[Panel]) -> Result<()> {
    if panels.is_empty() {
        return Ok(());
    }
    write_whole(&root().join("bench/plots").join(format!("{name}.svg")), draw(title, panels).as_bytes())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

fn draw(title: &str, panels: &[Panel]) -> String {
    let height =
        panels.iter().map(|panel| HEADING + BAR * panel.bars.len() as f64 + GAP).sum::<f64>() + TITLE;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"12\" y=\"24\" font-size=\"15\">{}</text>\n",
        escaped(title)
    );
    let mut top = TITLE;
    for panel in panels {
        let most = panel.bars.iter().map(|bar| bar.1).fold(0.0, f64::max);
        let _ = writeln!(
            svg,
            "<text x=\"12\" y=\"{}\" font-weight=\"bold\">{}</text>",
            top + 14.0,
            escaped(&panel.title)
        );
        top += HEADING;
        for (label, value) in &panel.bars {
            let length = if most > 0.0 { (value / most * LONGEST).max(1.0) } else { 1.0 };
            let (middle, right, after) = (top + BAR - 5.0, NAMES - 8.0, NAMES + length + 6.0);
            let _ = write!(
                svg,
                "<text x=\"{right}\" y=\"{middle}\" text-anchor=\"end\">{}</text>\n\
                 <rect x=\"{NAMES}\" y=\"{}\" width=\"{length:.1}\" height=\"{}\" fill=\"{}\"/>\n\
                 <text x=\"{after:.1}\" y=\"{middle}\">{}</text>\n",
                escaped(label),
                top + 1.0,
                BAR - 3.0,
                colour(label),
                short(*value),
            );
            top += BAR;
        }
        top += GAP;
    }
    svg + "</svg>\n"
}

/// Writes `bench/plots/NAME.svg` with a line for each series, which is named below the picture; nothing if there is none.
pub fn lines(name: &str, title: &str, along: &str, series: &[(String, Vec<f64>)]) -> Result<()> {
    if series.is_empty() {
        return Ok(());
    }
    write_whole(
        &root().join("bench/plots").join(format!("{name}.svg")),
        draw_lines(title, along, series).as_bytes(),
    )
}

/// Colours of lines, and how they are drawn: some of them lie on others.
const LINES: [(&str, &str); 4] = [("#2f6db5", ""), ("#4c9f70", "6 3"), ("#a63d40", "2 3"), ("#c9a227", "")];
/// Height of the field that lines are in.
const FIELD: f64 = 240.0;

fn draw_lines(title: &str, along: &str, series: &[(String, Vec<f64>)]) -> String {
    let most = series.iter().flat_map(|one| &one.1).copied().fold(0.0, f64::max).max(1.0);
    let points = series.iter().map(|one| one.1.len()).max().unwrap_or(0).max(2);
    let (left, width, bottom) = (70.0, WIDTH - 90.0, TITLE + FIELD);
    let height = bottom + 40.0 + BAR * series.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"12\" y=\"24\" font-size=\"15\">{}</text>\n\
         <path d=\"M{left} {TITLE}V{bottom}H{}\" fill=\"none\" stroke=\"black\"/>\n\
         <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n\
         <text x=\"{}\" y=\"{bottom}\" text-anchor=\"end\">0</text>\n\
         <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{} {points}</text>\n",
        escaped(title),
        left + width,
        left - 6.0,
        TITLE + 10.0,
        short(most),
        left - 6.0,
        left + width,
        bottom + 16.0,
        escaped(along),
    );
    for (number, (name, values)) in series.iter().enumerate() {
        let (colour, dashes) = LINES[number % LINES.len()];
        let mut path = String::new();
        for (at, value) in values.iter().enumerate() {
            let x = left + width * at as f64 / (points - 1) as f64;
            let y = bottom - FIELD * value / most;
            let _ = write!(path, "{}{x:.1} {y:.1}", if at == 0 { 'M' } else { 'L' });
        }
        let below = bottom + 36.0 + BAR * number as f64;
        let _ = write!(
            svg,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dashes}\"/>\n\
             <path d=\"M{left} {0}h30\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dashes}\"/>\n\
             <text x=\"{1}\" y=\"{below}\">{2}</text>\n",
            below - 4.0,
            left + 38.0,
            escaped(name),
        );
    }
    svg + "</svg>\n"
}

/// Three significant digits.
pub fn short(value: f64) -> String {
    if value >= 1000.0 || value == 0.0 {
        return shown(value.round());
    }
    let digits = (2 - value.abs().log10().floor() as i32).clamp(0, 4);
    let text = format!("{value:.*}", digits.unsigned_abs() as usize);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_short() {
        let texts = [0.0, 0.0123, 0.5, 1.0, 12.34, 123.4, 12345.6].map(short);
        assert_eq!(texts, ["0", "0.0123", "0.5", "1", "12.3", "123", "12,346"]);
    }

    #[test]
    fn a_line_has_a_point_for_each_value() {
        let series = [("a & b".to_owned(), vec![4.0, 2.0, 0.0]), ("c".to_owned(), vec![0.0; 3])];
        let svg = draw_lines("flushes", "interval", &series);
        assert!(svg.contains("M70.0 44.0L385.0 164.0L700.0 284.0"), "{svg}");
        assert!(svg.contains("a &amp; b") && svg.contains("interval 3"));
    }

    #[test]
    fn the_longest_bar_has_the_whole_width() {
        let bars = vec![("vpio tx".to_owned(), 2.0), ("emulated tx".to_owned(), 4.0)];
        let svg = draw("a < b", &[Panel { title: "ne2000".into(), bars }]);
        assert!(
            svg.contains("width=\"460.0\"") && svg.contains("width=\"230.0\"") && svg.contains("a &lt; b")
        );
    }
}
