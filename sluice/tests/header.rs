//! `guest/linux/sluice.h`: the constants of `crates/hypercall` for kernel modules, generated. After a change of the crate,
//! `cargo test -p sluice --test header -- --ignored` writes it anew.

use std::path::{Path, PathBuf};
use syn::{BinOp, Expr, Item, Lit, Meta, Visibility};

/// What C calls a constant begins with this.
const PREFIX: &str = "SLUICE_";

/// The modules whose constants modules in guests need.
const SOURCES: [&str; 10] =
    ["backend", "call", "grant", "table", "devfile", "region", "paravirtual", "vif", "signals", "symbiotic"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn header_path() -> PathBuf {
    root().join("guest/linux/sluice.h")
}

/// The header as it should be.
fn header() -> String {
    let mut text = String::from(
        "/* SPDX-License-Identifier: Apache-2.0 OR MIT */\n\
         /* What guests say to Sluice on purpose. Generated from crates/hypercall by sluice/tests/header.rs. */\n\
         #ifndef _SLUICE_H\n#define _SLUICE_H\n",
    );
    for source in SOURCES {
        let path = root().join(format!("crates/hypercall/src/{source}.rs"));
        let file = syn::parse_file(&std::fs::read_to_string(path).unwrap()).unwrap();
        text += &file.items.iter().filter_map(definition).collect::<String>();
    }
    text + "\n#endif\n"
}

/// A public constant as C defines it, after what its documentation says.
fn definition(item: &Item) -> Option<String> {
    let Item::Const(item) = item else { return None };
    if !matches!(item.vis, Visibility::Public(_)) {
        return None;
    }
    let comment: Vec<String> = item.attrs.iter().filter_map(documentation).collect();
    let syn::Type::Path(kind) = &*item.ty else { panic!("{} is no number", item.ident) };
    let suffix = if kind.path.is_ident("u64") { "ULL" } else { "U" };
    let value = value(&item.expr, suffix);
    Some(format!("\n/*{} */\n#define {PREFIX}{} {value}\n", comment.join("\n *"), item.ident))
}

/// A line of documentation, without links.
fn documentation(attribute: &syn::Attribute) -> Option<String> {
    let Meta::NameValue(pair) = &attribute.meta else { return None };
    let Expr::Lit(literal) = &pair.value else { return None };
    let Lit::Str(line) = &literal.lit else { return None };
    Some(line.value().replace("[`", "").replace("`]", "").replace('`', ""))
}

/// A constant expression in C.
fn value(expression: &Expr, suffix: &str) -> String {
    match expression {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Int(number) => {
                let digits = number.to_string().replace('_', "");
                format!("{digits}{suffix}")
            }
            _ => panic!("a constant is no number"),
        },
        Expr::Path(path) => {
            format!("{PREFIX}{}", path.path.get_ident().expect("a constant of the same file"))
        }
        // C's numbers are wide enough as they are.
        Expr::Cast(cast) => value(&cast.expr, suffix),
        Expr::Paren(inner) => value(&inner.expr, suffix),
        Expr::Binary(binary) => {
            let operator = match binary.op {
                BinOp::Add(_) => "+",
                BinOp::Shl(_) => "<<",
                BinOp::BitOr(_) => "|",
                _ => panic!("this generator knows only +, << and |"),
            };
            format!("({} {operator} {})", value(&binary.left, suffix), value(&binary.right, suffix))
        }
        _ => panic!("this generator does not know such an expression"),
    }
}

#[test]
fn modules_in_guests_have_the_hypervisors_constants() {
    let committed = std::fs::read_to_string(header_path()).unwrap_or_default();
    assert!(
        committed == header(),
        "guest/linux/sluice.h is old: cargo test -p sluice --test header -- --ignored"
    );
}

#[test]
#[ignore = "writes guest/linux/sluice.h"]
fn write_the_header() {
    std::fs::write(header_path(), header()).unwrap();
}
