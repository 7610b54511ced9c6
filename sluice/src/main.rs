//! The host command.
mod bundle; mod config; mod cpio; mod kernels; mod packages; mod rootfs; mod workspace;
fn main() -> anyhow::Result<()> {
    let a: Vec<String> = std::env::args().collect();
    let setup = config::load(std::path::Path::new(&a[2]))?;
    if a[1] == "bundle" { let b = bundle::build(&setup, "")?; std::fs::write(&a[4], b.bytes)?; println!("{:?}", b.kernels); }
    Ok(())
}
