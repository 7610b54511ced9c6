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
    for (binary, base, offset) in [
        ("sluice-bare", 0x100_0000_u64, 0),
        ("sluice-bare-low", 0x3_0000, 0),
        // Page 0 of a paravirtual kernel is where its ELF notes say.
        ("sluice-bare-paravirtual", 0xffff_ffff_8010_0000, 0xffff_ffff_8000_0000_u64),
    ] {
        println!("cargo::rustc-link-arg-bin={binary}=--defsym=base={base:#x}");
        println!("cargo::rustc-link-arg-bin={binary}=--defsym=offset={offset:#x}");
    }
}
