#!/bin/sh
# Makes target/debian/sluice-modules-dkms_*.deb: the kernel modules of driver domains and guests, as sources that DKMS builds for each kernel that
# is installed and that they are for. It is unpacked once, and each module must build from there, for the kernels whose headers the cache has.
set -eu
cd "$(dirname "$0")/.."

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
root=target/deb/modules
package=target/debian/sluice-modules-dkms_${version}_all.deb
rm -rf "$root"
mkdir -p "$root/DEBIAN" "$root/usr/share/doc/sluice-modules-dkms" target/debian

modules=
for conf in guest/linux/*/dkms.conf; do
	name=$(sed -n 's/^PACKAGE_NAME="\(.*\)"$/\1/p' "$conf")
	[ "$(sed -n 's/^PACKAGE_VERSION="\(.*\)"$/\1/p' "$conf")" = "$version" ] || {
		echo "deb: $conf is not of version $version" >&2 && exit 1
	}
	modules="$modules $name"
	to=$root/usr/src/$name-$version
	mkdir -p "$to"
	# The headers that modules share are beside them in the tree, and within each of them here.
	cp "${conf%dkms.conf}"* guest/linux/*.h "$to"
done
cp LICENSES.md "$root/usr/share/doc/sluice-modules-dkms/copyright"

cat >"$root/DEBIAN/control" <<END
Package: sluice-modules-dkms
Version: $version
Architecture: all
Maintainer: $(sed -n 's/^maintainer = "\(.*\)"$/\1/p' sluice/Cargo.toml)
Section: kernel
Priority: optional
Depends: dkms
Description: Linux modules of domains of the Sluice hypervisor
 For driver domains: windows onto the memory of guests (sluice-backend). For guests:
 grants of single pages (sluice-dma), network interfaces as they are (sluice-vif),
 signals of a network, passed on (sluice-signals),
 a page that e1000 shares with the hypervisor (sluice-symbiotic),
 device files of other domains (sluice-devfile and its classes), page tables of
 paravirtual kernels (sluice-pibooster).
END
# What dh_dkms would write, for all of them.
cat >"$root/DEBIAN/postinst" <<END
#!/bin/sh
set -e
[ "\$1" = configure ] || exit 0
for module in$modules; do
	/usr/lib/dkms/common.postinst "\$module" $version "" "" "\$2"
done
END
cat >"$root/DEBIAN/prerm" <<END
#!/bin/sh
set -e
for module in$modules; do
	[ -z "\$(dkms status -m "\$module" -v $version)" ] || dkms remove -m "\$module" -v $version --all
done
END
chmod 755 "$root/DEBIAN/postinst" "$root/DEBIAN/prerm"
dpkg-deb --root-owner-group --build "$root" "$package" >/dev/null

# A look into it: nothing of this checkout may be needed.
unpacked=$(mktemp -d)
trap 'rm -rf "$unpacked"' EXIT
dpkg-deb -x "$package" "$unpacked"
built=0
for headers in "${SLUICE_CACHE:-$PWD/cache}"/headers/*-amd64/usr/src/*; do
	[ -d "$headers" ] || continue
	release=${headers##*/linux-headers-}
	for module in $modules; do
		series=$(sed -n 's/^BUILD_EXCLUSIVE_KERNEL="\(.*\)"$/\1/p' "$unpacked/usr/src/$module-$version/dkms.conf")
		echo "$release" | grep -q "$series" || continue
		rm -rf "$unpacked/build" && cp -r "$unpacked/usr/src/$module-$version" "$unpacked/build"
		make -s -C "$headers" M="$unpacked/build" CONFIG_DEBUG_INFO_BTF_MODULES= CC=gcc-12 CROSS_COMPILE= modules >"$unpacked/log" 2>&1 &&
			[ -s "$unpacked/build/$module.ko" ] || { cat "$unpacked/log" >&2; echo "deb: $module does not build for Linux $release" >&2; exit 1; }
		built=$((built + 1))
	done
done
echo "$package: $(du -k "$package" | cut -f 1) KiB; $built modules were built from it"
