//! Points the linker at `link.ld`, which puts the kernel at 16 MiB.

fn main() {
    let directory = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo::rerun-if-changed=link.ld");
    println!("cargo::rerun-if-changed=build.rs");
    for argument in [
        format!("-T{directory}/link.ld"),
        "-zmax-page-size=4096".into(),
        "-znoexecstack".into(),
        "--no-dynamic-linker".into(),
        "--build-id=none".into(),
    ] {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
}
