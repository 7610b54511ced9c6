#!/bin/sh
# tests/cloud-image.sh FILE: makes an image of the form of Debian's genericcloud images: a GUID partition table with the root file system as
# partition 1, which stands last on the disk, GRUB's partition 14, the EFI system partition 15; the cloud kernel in /boot, cloud-init, and a
# root that fstab and grub.cfg name by its PARTUUID. GRUB itself is not in it. Needs mmdebstrap, fakeroot, e2fsprogs, fdisk, dosfstools.
set -eu
image=$1
suite=${2:-bookworm}
root_id=6a3c9c3e-1111-4222-8333-0123456789ab
efi_id=6a3c9c3e-1111-4222-8333-0123456789ac
work=$(mktemp -d "$(dirname "$image")/.cloud-XXXXXX")
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"

# As in Debian's: partition 1 from sector 262144 on, 14 from 2048, 15 from 8192.
truncate -s 2G "$image"
sfdisk --quiet "$image" <<EOF
label: gpt
14: start=2048, size=6144, type=21686148-6449-6E6F-744E-656564454649
15: start=8192, size=253952, type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B, uuid=$efi_id
1: start=262144, type=4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709, uuid=$root_id
EOF
truncate -s 124M "$work/efi"
mkfs.vfat "$work/efi" >/dev/null
dd if="$work/efi" of="$image" bs=1M seek=4 conv=notrunc,sparse status=none

fstab="PARTUUID=$root_id / ext4 rw,discard,errors=remount-ro,x-systemd.growfs 0 1\nPARTUUID=$efi_id /boot/efi vfat defaults 0 0\n"
grub="menuentry Debian {\n  search --no-floppy --label --set=root root\n  linux /boot/vmlinuz root=PARTUUID=$root_id ro console=ttyS0,115200\n}\n"
TMPDIR=$work mmdebstrap --quiet --variant=minbase --skip=output/dev --format=tar \
	--include=linux-image-cloud-amd64,systemd-sysv,udev,dbus,kmod,openssh-server,iproute2,cloud-init,netplan.io,systemd-resolved,sudo \
	--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
	--customize-hook="printf '$fstab' >\"\$1/etc/fstab\"" \
	--customize-hook="mkdir -p \"\$1/boot/grub\" \"\$1/boot/efi\" && printf '$grub' >\"\$1/boot/grub/grub.cfg\"" \
	--customize-hook='rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/hostname' \
	"$suite" "$work/tar"

(cd "$work" && fakeroot -- sh -c 'mkdir -p root/dev && tar -C root -xf tar &&
	mke2fs -q -t ext4 -L root -d root part 1900M')
dd if="$work/part" of="$image" bs=1M seek=128 conv=notrunc,sparse status=none
