#!/bin/sh
# Installs the Debian packages that building, testing and running Sluice needs, and upgrades a compiler that is too old.
# With `all`, what only `make test-all` and `make bench` need, too. Does nothing, and asks for no password, when all is there.
# SLUICE_SKIP_SETUP=1 leaves everything to you.
set -eu

[ "${SLUICE_SKIP_SETUP:-}" = 1 ] && exit 0

# The oldest compiler that will do: the workspace says it once, for cargo too.
rust=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$(dirname "$0")/../Cargo.toml")
target=x86_64-unknown-none

is_new_enough() {
	[ "$(printf '%s\n' "$rust" "$1" | sort -V | head -n 1)" = "$rust" ]
}

# The emulated machine, the GRUB image, and what cargo needs to trust the place that crates come from.
packages="qemu-system-x86 grub-common grub-pc-bin grub-efi-amd64-bin xorriso mtools ovmf xz-utils zstd ca-certificates"

# A compiler: `core` for the bare-metal target is built from Debian's sources, unless rustup has the
# target installed. Host programs are linked by gcc, the hypervisor by lld.
packages="$packages gcc libc6-dev"

# Modules for guests' kernels are built with the compiler that Debian's kernels were built with; a program in the kernel's
# headers reads ELF files.
packages="$packages make gcc-12 libelf-dev"

# Disks of guests: a Debian on them, made without privileges, and the way in.
packages="$packages mmdebstrap uidmap fakeroot e2fsprogs openssh-client"

# A graphics card that draws is QEMU's windows, and Mesa.
[ "${1:-}" != all ] || packages="$packages qemu-system-gui libegl1 libgl1-mesa-dri"

# The kernel's own selftests, those of 32 bits among them. The package gcc-multilib would want compilers for other machines away, and is not needed.
[ "${1:-}" != all ] || packages="$packages gcc-12-multilib libcap-dev libnuma-dev"

# IGT, if there is a checkout of it (docs/benchmarks.md, device files).
[ -z "${SLUICE_IGT:-}" ] || packages="$packages meson ninja-build bison flex pkg-config libdrm-dev libcairo2-dev libdw-dev libkmod-dev libpciaccess-dev \
	libproc2-dev libudev-dev libunwind-dev libpixman-1-dev zlib1g-dev libglib2.0-dev"
compiler="rustc-web cargo-web rust-web-src rust-web-clippy rustfmt-web"
rustc=$(command -v rustc || true)
found=$([ -z "$rustc" ] || rustc --version 2>/dev/null | cut -d ' ' -f 2)
case $rustc in
'' | /usr/bin/rustc | /bin/rustc) ;; # Debian's is judged by its package.
*)
	if [ -n "$found" ] && ! is_new_enough "$found"; then
		echo "setup: $rustc is Rust $found, and Sluice needs $rust or later" >&2
		echo "  help: rustup update stable" >&2
		exit 1
	fi
	;;
esac
if sysroot=$(rustc --print sysroot 2>/dev/null) && [ -d "$sysroot/lib/rustlib/$target/lib" ]; then
	compiler=
else
	packages="$packages lld"
fi

# What has to be installed, and what has to be upgraded.
missing= old=
for package in $packages $compiler; do
	state=$(dpkg-query -W -f '${db:Status-Status} ${Version}' "$package" 2>/dev/null || true)
	case $state in
	"installed "*) ;;
	*) missing="$missing $package" && continue ;;
	esac
	case " $compiler " in
	*" $package "*) is_new_enough "${state#installed }" || old="$old $package" ;;
	esac
done
[ -z "$missing$old" ] && exit 0

if ! command -v apt-get >/dev/null; then
	echo "setup: this is no Debian system; install what corresponds to:$missing$old" >&2
	exit 1
fi
as_root=
if [ "$(id -u)" != 0 ]; then
	as_root=sudo
	command -v sudo >/dev/null || {
		echo "setup: as root, run: apt-get update && apt-get install --no-install-recommends$missing$old" >&2
		exit 1
	}
fi

# A source of somebody else's that does not answer is no reason to stop here.
echo "setup: reading Debian's package lists"
$as_root apt-get update -qq || echo "setup: some package lists could not be read; going on" >&2

# Nothing is installed before it is known that the compiler will do.
for package in $compiler; do
	case " $missing$old " in *" $package "*) ;; *) continue ;; esac
	offered=$(LC_ALL=C apt-cache policy "$package" | sed -n 's/^  Candidate: //p')
	if [ -z "$offered" ] || [ "$offered" = "(none)" ] || ! is_new_enough "$offered"; then
		release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
		cat >&2 <<-END
			setup: apt offers $package ${offered:-(none)}, and Sluice needs Rust $rust or later
			  help: Debian's security suite has it: add $release-security, from the archive that Debian's documentation names,
			    to apt's sources, and run this again
			  or use rustup: rustup toolchain install stable && rustup target add $target
		END
		exit 1
	fi
done

[ -z "$missing" ] || echo "setup: installing$missing"
[ -z "$old" ] || echo "setup: upgrading$old"

# apt tells how far it is in lines `dlstatus:...:PERCENT:WORDS` and `pmstatus:...:PERCENT:WORDS` (its README.progress-reporting).
progress() {
	began=$(date +%s) said='' failed=0
	while IFS=: read -r kind what percent words; do
		case $kind in
		dlstatus) step=downloading ;;
		pmstatus) step=installing ;;
		status) failed=$what && continue ;;
		*) continue ;;
		esac
		percent=${percent%%.*}
		if [ -t 1 ]; then
			printf '\rsetup: %s, %s %% ' "$step" "$percent"
		elif [ "$said" != "$step ${percent%?}" ]; then
			said="$step ${percent%?}"
			echo "setup: $step, $percent %, $(($(date +%s) - began)) s"
		fi
	done
	[ ! -t 1 ] || echo
	[ "$failed" = 0 ] || { echo "setup: apt-get failed with status $failed" >&2 && exit 1; }
	echo "setup: done in $(($(date +%s) - began)) s"
}
# The lines have a descriptor of their own: apt makes it non-blocking, which the programs that packages start could not cope with.
{
	$as_root sh -c 'DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o APT::Status-Fd=3 -o Dpkg::Use-Pty=0 \
		--no-install-recommends "$@" 3>&1 >/dev/null </dev/null' sh $missing$old && echo status:0 || echo "status:$?"
} | progress
