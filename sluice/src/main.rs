//! The host command.
fn main() {}
