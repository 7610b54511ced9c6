//! Points the linker at `link.ld`, which puts each kernel where it belongs.

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
    // The hypervisor puts what a kernel is started with below 0x30000.
    for (binary, base) in [("sluice-bare", 0x100_0000), ("sluice-bare-low", 0x3_0000)] {
        println!("cargo::rustc-link-arg-bin={binary}=--defsym=base={base:#x}");
    }
}
