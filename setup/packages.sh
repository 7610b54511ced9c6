#!/bin/sh
# Installs the Debian packages that building, testing and running Sluice needs. Does nothing, and asks
# for no password, when they are all there. SLUICE_SKIP_SETUP=1 leaves everything to you.
set -eu

[ "${SLUICE_SKIP_SETUP:-}" = 1 ] && exit 0

# The emulated machine, and the GRUB image.
packages="qemu-system-x86 grub-common grub-pc-bin grub-efi-amd64-bin xorriso mtools ovmf xz-utils"

# A compiler: `core` for the bare-metal target is built from Debian's sources, unless rustup has the
# target installed. Host programs are linked by gcc, the hypervisor by lld.
target=x86_64-unknown-none
if sysroot=$(rustc --print sysroot 2>/dev/null) && [ -d "$sysroot/lib/rustlib/$target/lib" ]; then
	packages="$packages gcc libc6-dev"
else
	packages="$packages gcc libc6-dev rustc-web cargo-web rust-web-src rust-web-clippy rustfmt-web lld"
fi

missing=
for package in $packages; do
	status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
	[ "$status" = installed ] || missing="$missing $package"
done
[ -z "$missing" ] && exit 0

if ! command -v apt-get >/dev/null; then
	echo "setup: this is no Debian system; install what corresponds to:$missing" >&2
	exit 1
fi
as_root=
if [ "$(id -u)" != 0 ]; then
	as_root=sudo
	command -v sudo >/dev/null || {
		echo "setup: as root, run: apt-get install$missing" >&2
		exit 1
	}
fi
echo "setup: installing$missing"
# A source of somebody else's that does not answer is no reason to stop here.
$as_root apt-get update -qq || echo "setup: some package lists could not be read; going on" >&2
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
