#!/bin/sh
# Makes target/debian/sluice_*.deb: the command, the hypervisor, examples, manual pages, completions. What is in it stands in sluice/Cargo.toml
# ([package.metadata.deb]). The package is unpacked once, and its command must work from there.
set -eu
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

cargo_deb=$(command -v cargo-deb || echo target/tools/bin/cargo-deb)
[ -x "$cargo_deb" ] || $cargo install --quiet --locked --root target/tools cargo-deb

$cargo build --quiet --release --package sluice
sluice=target/release/sluice
$sluice build >/dev/null
rm -rf target/deb
mkdir -p target/deb/man
# It has the daemon built that a driver domain runs.
$sluice bundle examples/driver-domain.toml -o target/deb/bundle.cpio >/dev/null
$sluice man target/deb/man >/dev/null
for shell in bash zsh fish; do $sluice completions $shell >target/deb/sluice.$shell; done

package=$("$cargo_deb" deb --quiet --package sluice --no-build --output target/debian/ | tail -n 1)

# A look into it: nothing of this checkout may be needed.
unpacked=$(mktemp -d)
trap 'rm -rf "$unpacked"' EXIT
dpkg-deb -x "$package" "$unpacked"
for file in bin/sluice lib/sluice/hypervisor share/sluice/guest/rootfs/init share/sluice/examples/two-guests.toml \
	share/man/man1/sluice-run.1.gz share/bash-completion/completions/sluice share/doc/sluice/copyright; do
	[ -s "$unpacked/usr/$file" ] || { echo "deb: the package lacks /usr/$file" >&2 && exit 1; }
done
# Disks of guests are made of it, file by file, and known by all of it.
diff -r guest/debian "$unpacked/usr/share/sluice/guest/debian" >&2 || { echo "deb: guest/debian is not whole in the package" >&2 && exit 1; }
installed() { env -u SLUICE_HOME HOME="$unpacked" SLUICE_CACHE="$PWD/cache" "$unpacked/usr/bin/sluice" "$@"; }
installed check "$unpacked/usr/share/sluice/examples/two-guests.toml" >/dev/null
for example in one-guest driver-domain; do
	installed bundle "$unpacked/usr/share/sluice/examples/$example.toml" -o "$unpacked/bundle.cpio" >/dev/null
done
if said=$(installed build 2>&1); then
	echo "deb: the installed command builds from sources that it does not have" >&2 && exit 1
fi
case $said in *"the package has none"*) ;; *) echo "deb: $said" >&2 && exit 1 ;; esac
echo "$package: $(dpkg-deb -f "$package" Version), $(du -k "$package" | cut -f 1) KiB; it works when it is unpacked"
