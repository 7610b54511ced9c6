/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What guests say to Sluice on purpose. Generated from crates/hypercall by sluice/tests/header.rs. */
#ifndef _SLUICE_H
#define _SLUICE_H

/* PCI vendor identifier. Nobody has registered it. */
#define SLUICE_VENDOR 0x534cU

/* PCI device identifier. */
#define SLUICE_DEVICE 0x0001U

/* PCI class code: system peripheral, other. */
#define SLUICE_CLASS 0x088000U

/* BAR of the registers and the MSI-X table. */
#define SLUICE_REGISTERS_BAR 0U

/* Bytes of it. */
#define SLUICE_REGISTERS_SIZE 0x2000ULL

/* Offset of the MSI-X table in it. */
#define SLUICE_MSIX_TABLE 0x1000U

/* Offset of the MSI-X pending bits in it. */
#define SLUICE_MSIX_PENDING 0x1800U

/* BAR of the window, prefetchable memory above 4 GiB. */
#define SLUICE_WINDOW_BAR 2U

/* Most queues of one device. */
#define SLUICE_MAX_QUEUES 17U

/* Most entries of one queue. */
#define SLUICE_MAX_QUEUE_SIZE 1024U

/* Message that tells of a change of STATUS or STATE. */
#define SLUICE_CHANGED_VECTOR 0U

/* Message that tells of available buffers in queue 0; those of other queues follow. */
#define SLUICE_KICK_VECTOR 1U

/* Messages. */
#define SLUICE_VECTORS (SLUICE_KICK_VECTOR + SLUICE_MAX_QUEUES)

/* Reads as MAGIC_VALUE. */
#define SLUICE_MAGIC 0x000U

/* "SLBE". */
#define SLUICE_MAGIC_VALUE 0x45424c53U

/* Reads as VERSION_VALUE. */
#define SLUICE_VERSION 0x004U

/* Of these registers. */
#define SLUICE_VERSION_VALUE 1U

/* Virtio device type (1: network, 2: block, 63: device file). Read only. */
#define SLUICE_KIND 0x008U

/* The guest's device status (Virtio 1.2, 2.1). Read only. */
#define SLUICE_STATUS 0x00cU

/* STATE_ bits. Read only. */
#define SLUICE_STATE 0x010U

/* The device is offered to the guest. */
#define SLUICE_STATE_OFFERED (1U << 0U)

/* The guest resets the device: stop all queues, forget them, then write CONTROL_RESET_DONE. */
#define SLUICE_STATE_RESETTING (1U << 1U)

/* There is a guest now. */
#define SLUICE_STATE_PEER (1U << 2U)

/* Another guest is in the foreground: what the person at a device does is not meant for this one. */
#define SLUICE_STATE_BACKGROUND (1U << 3U)

/* One of the CONTROL_ commands. Reads as what came of the last: 0, or a REFUSED_ value. */
#define SLUICE_CONTROL 0x014U

/* Offers the device to the guest with the features, queues and configuration that are in the registers. A guest that has come to terms with a
 * back end before keeps them: its features must be among those offered. */
#define SLUICE_CONTROL_OFFER 1U

/* No queue of the guest's former use is touched any more. */
#define SLUICE_CONTROL_RESET_DONE 2U

/* CONFIG has changed: the guest is told. */
#define SLUICE_CONTROL_CONFIG_CHANGED 3U

/* The device cannot go on: the guest is told that it needs a reset. */
#define SLUICE_CONTROL_NEEDS_RESET 4U

/* Of a device file whose guest is in the foreground: the person at the device wants the next guest there that the same domain serves. */
#define SLUICE_CONTROL_PASS_FOCUS 5U

/* There is no such command, or it makes no sense now. */
#define SLUICE_REFUSED_COMMAND 1U

/* Number of queues, their size, or the length of the configuration is out of range. */
#define SLUICE_REFUSED_RANGE 2U

/* The guest uses features that are not offered any more. */
#define SLUICE_REFUSED_FEATURES 3U

/* Features of the device, bits 31:0, then 63:32. VIRTIO_F_VERSION_1 is implied; what belongs to the transport is masked.
 * Written before the offer. */
#define SLUICE_DEVICE_FEATURES 0x018U

/* Features that the guest has accepted, bits 31:0, then 63:32. Read only; valid from FEATURES_OK on. */
#define SLUICE_DRIVER_FEATURES 0x020U

/* Number of queues, up to MAX_QUEUES. Written before the offer. */
#define SLUICE_QUEUES 0x028U

/* Most entries of a queue, a power of two up to MAX_QUEUE_SIZE. Written before the offer. */
#define SLUICE_QUEUE_SIZE 0x02cU

/* Bytes of CONFIG that the device has. Written before the offer. */
#define SLUICE_CONFIG_LEN 0x030U

/* Ranges of the window in which the guest issued memory. Read only. */
#define SLUICE_RANGES 0x034U

/* Slot of this function on its bus, as crate::call::NOTIFY wants it. Read only. */
#define SLUICE_SLOT 0x038U

/* Name of the device, "guest.device", ended by zeros. Read only. */
#define SLUICE_NAME 0x040U

/* Bytes of it. */
#define SLUICE_NAME_SIZE 0x40U

/* What the configuration says is behind the device: for a disk a file or block device of the driver domain, for a network a
 * bridge. Ended by zeros. Read only. */
#define SLUICE_SOURCE 0x080U

/* Bytes of it. */
#define SLUICE_SOURCE_SIZE 0x80U

/* Configuration of the device as the guest sees it (Virtio 1.2, 5.1.4, 5.2.4). To begin with, what the hypervisor
 * knows of it: the hardware address of a network device. */
#define SLUICE_CONFIG 0x100U

/* Bytes of it. */
#define SLUICE_CONFIG_SIZE 0x100U

/* Ranges in which the guest issued memory: offset in the window, then bytes, eight bytes each. */
#define SLUICE_RANGE 0x200U

/* Bytes of a range. */
#define SLUICE_RANGE_STRIDE 0x10U

/* Most ranges. */
#define SLUICE_MAX_RANGES 16U

/* Queues as the guest set them up. Read only; valid from DRIVER_OK on. */
#define SLUICE_QUEUE 0x400U

/* Bytes of a queue. */
#define SLUICE_QUEUE_STRIDE 0x20U

/* Offset in a queue: entries. */
#define SLUICE_QUEUE_ENTRIES 0x00U

/* Offset in a queue: 1 if the guest uses it. */
#define SLUICE_QUEUE_ENABLED 0x04U

/* Offset in a queue: I/O address of its descriptors, eight bytes. */
#define SLUICE_QUEUE_DESC 0x08U

/* Offset in a queue: I/O address of the driver area (available ring), eight bytes. */
#define SLUICE_QUEUE_DRIVER 0x10U

/* Offset in a queue: I/O address of the device area (used ring), eight bytes. */
#define SLUICE_QUEUE_DEVICE 0x18U

/* Has the hypervisor look for pending interrupts; no arguments, answered with 0 (KVM_HC_VAPIC_POLL_IRQ). */
#define SLUICE_VAPIC_POLL_IRQ 1ULL

/* Tells a guest that buffers of one of its devices' queues have been used. By the driver domain that serves the device, with the
 * slot of the back-end function on its bus (crate::backend::SLOT) and the number of the queue. Answered with 0. */
#define SLUICE_NOTIFY 0x534c0001ULL

/* Where the numbers of these calls begin (interface(crate::call::interface)). */
#define SLUICE_GRANT_CALLS 0x534c0010ULL

/* Makes a space: peer, number of references. Answered with the number of the space. */
#define SLUICE_GRANT_CREATE 0x534c0010ULL

/* Ends a space in which nothing is granted: number. */
#define SLUICE_GRANT_DESTROY 0x534c0011ULL

/* Accepts a space: granter (a peer of the caller), number of the space, guest-physical address of the window, guest-physical address of the status words,
 * of eight bytes each, with GRANT_STATUS_ADDRESSES, or GRANT_NO_STATUS. Whoever accepts clears the words before. Answered with the number of references. */
#define SLUICE_GRANT_ACCEPT 0x534c0012ULL

/* Gives a window up: its address. What is granted there is taken back at once. */
#define SLUICE_GRANT_LEAVE 0x534c0013ULL

/* Lets the peer reach pages, or write such as it may only read so far: space, first reference, guest-physical address of the first page and GRANT_READ_ONLY, number of pages. */
#define SLUICE_GRANT_ISSUE 0x534c0014ULL

/* Takes pages back: space, first reference, number, 0 or GRANT_FORCED. */
#define SLUICE_GRANT_REVOKE 0x534c0015ULL

/* Does a list of both: space, guest-physical address of the list, number of entries. An entry is two words of eight bytes: the reference with
 * GRANT_LIST_REVOKE and GRANT_FORCED, then the page as for GRANT_ISSUE. */
#define SLUICE_GRANT_BATCH 0x534c0016ULL

/* Asks for a reference: space, reference. Answered with GRANT_IS_ bits. */
#define SLUICE_GRANT_QUERY 0x534c0017ULL

/* From now on a virtual device reaches what is granted in its space, GRANT_DEVICE, and nothing else: its driver is refused before. Number of
 * the space. Answered with the number of references. There is one in a guest with grants = "pages", and grants in it need no accepting: whoever
 * serves the device now sees them. */
#define SLUICE_GRANT_OPEN 0x534c0018ULL

/* Space of the virtual device in slot n of the caller's PCI bus: GRANT_DEVICE + n. It has at least as many references as the caller has pages, also
 * in holes; the device finds reference n at address n << 12. */
#define SLUICE_GRANT_DEVICE 0x80ULL

/* Most references that one call moves. */
#define SLUICE_GRANT_MAX_BATCH 512ULL

/* Most references of a space. */
#define SLUICE_GRANT_MAX_SIZE 0x100000ULL

/* The peer keeps no status words: no revoke is ever answered with EBUSY. */
#define SLUICE_GRANT_NO_STATUS 0xffffffffffffffffULL

/* Each status word is followed by the machine address of its page, eight bytes, 0 where nothing is granted: for a device without an IOMMU. It is
 * to be read during a use only. Such uses hold up also a revoke by force. Refused with EPERM where no device of the caller reaches all memory anyway. */
#define SLUICE_GRANT_STATUS_ADDRESSES (1ULL << 0ULL)

/* The peer may not write the pages. */
#define SLUICE_GRANT_READ_ONLY (1ULL << 0ULL)

/* Whatever the status word says, unless GRANT_STATUS_ADDRESSES. */
#define SLUICE_GRANT_FORCED (1ULL << 32ULL)

/* An entry of a list takes its reference back. */
#define SLUICE_GRANT_LIST_REVOKE (1ULL << 33ULL)

/* The peer has accepted the space, and lives. */
#define SLUICE_GRANT_IS_ACCEPTED (1ULL << 0ULL)

/* The reference is granted. */
#define SLUICE_GRANT_IS_ISSUED (1ULL << 1ULL)

/* The peer may write the page. */
#define SLUICE_GRANT_IS_WRITABLE (1ULL << 2ULL)

/* In a status word: the reference is granted. The other bits below 32 count the uses that the peer has under way. */
#define SLUICE_GRANT_STATUS_GRANTED (1ULL << 63ULL)

/* Where the numbers of these calls begin (interface(crate::call::interface)). */
#define SLUICE_TABLE_CALLS 0x534c0040ULL

/* Lends pages of a space by a table, the older way: number of the space, guest-physical address of the table, which is a page's and has eight bytes for each reference.
 * Nothing can be issued in the space any more; its peer has pages mapped and copied, as the entries permit. -EBUSY: something is granted. */
#define SLUICE_TABLE_LEND 0x534c0040ULL

/* Maps pages that a peer lends by a table: window, guest-physical address of a list of references, number. A window is its address, or GRANT_DEVICE and the
 * slot of a back-end function on the caller's bus. An entry is eight bytes: the reference, and TABLE_MAP_READ. -EPERM: the page may only be read. */
#define SLUICE_TABLE_MAP 0x534c0041ULL

/* Unmaps them: window, guest-physical address of a list of references, number. An entry is eight bytes. */
#define SLUICE_TABLE_UNMAP 0x534c0042ULL

/* Copies between memory of the caller's and pages that a peer lends by a table: window, guest-physical address of a list, number of entries. An entry is two words of eight bytes:
 * the reference with TABLE_COPY_OFFSET, TABLE_COPY_BYTES and TABLE_COPY_OUT, then the guest-physical address in the caller. */
#define SLUICE_TABLE_COPY 0x534c0043ULL

/* In a table: the peer may use the page. Bits 63:12 are its guest-physical address. */
#define SLUICE_TABLE_PERMIT (1ULL << 0ULL)

/* In a table: it may only read it. */
#define SLUICE_TABLE_READ_ONLY (1ULL << 1ULL)

/* In a table, the hypervisor's: it uses it. The granter ends a grant by exchanging an entry without this bit for 0, in one locked access. */
#define SLUICE_TABLE_USED (1ULL << 2ULL)

/* A page that is mapped is only read. */
#define SLUICE_TABLE_MAP_READ (1ULL << 32ULL)

/* Of a copy: what the first byte's place in the page is multiplied by. */
#define SLUICE_TABLE_COPY_OFFSET (1ULL << 32ULL)

/* Of a copy: what the number of bytes, 1 to 4096, is multiplied by. */
#define SLUICE_TABLE_COPY_BYTES (1ULL << 48ULL)

/* Of a copy: out of the caller's memory, into the page. */
#define SLUICE_TABLE_COPY_OUT (1ULL << 63ULL)

/* Virtio device type: the last that has a PCI device identifier. Nobody has registered it. */
#define SLUICE_DEVFILE_KIND 63U

/* Where the numbers of these calls begin (interface(crate::call::interface)). */
#define SLUICE_DEVFILE_CALLS 0x534c0020ULL

/* Declares what an operation may reach of the calling process: slot of the device on the caller's bus, tag of the operation, guest-physical address of
 * the ranges, their number. The process is the one whose page tables the calling processor uses. What the tag had declared before is withdrawn. */
#define SLUICE_DEVFILE_DECLARE 0x534c0020ULL

/* Withdraws what an operation may reach: slot, tag. When it returns nobody reaches it any more. */
#define SLUICE_DEVFILE_WITHDRAW 0x534c0021ULL

/* Copies declared memory, by the domain that serves the device: its slot of the back-end function and, from bit 32 on, the tag; the address in the
 * process; guest-physical address in the caller; bytes (up to DEVFILE_MAX_COPY) and, from bit 32 on, one DEVFILE_ way. Fails with EPERM if that is not declared, and with EFAULT if
 * the process has no such page now: then it can be tried again. */
#define SLUICE_DEVFILE_COPY 0x534c0022ULL

/* A range may be read by the driver domain. */
#define SLUICE_DEVFILE_IN 1U

/* A range may be written by the driver domain. */
#define SLUICE_DEVFILE_OUT 2U

/* Most operations of a device that are under way at once. Tags are below it. */
#define SLUICE_DEVFILE_MAX_OPERATIONS 100U

/* Most ranges of an operation. */
#define SLUICE_DEVFILE_MAX_RANGES 16U

/* Most bytes of all ranges of an operation together. */
#define SLUICE_DEVFILE_MAX_BYTES 0x80000U

/* Most bytes that one call copies. */
#define SLUICE_DEVFILE_MAX_COPY 0x4000U

/* Bytes of a range: address (8), bytes (4), ways (4). */
#define SLUICE_DEVFILE_RANGE_SIZE 0x10U

/* Most descriptors that an operation takes: those of a buffer in eight planes, and that of its request. */
#define SLUICE_DEVFILE_MAX_DESCRIPTORS 9U

/* Bytes of a descriptor that an operation takes: where it stands, four bytes of the process that the operation may read (8), number of the file (2), the program's number for
 * it (2), number of the device (4), as its DEVFILE_HELLO said it. */
#define SLUICE_DEVFILE_DESCRIPTOR_SIZE 0x10U

/* A driver finds such a descriptor under a number that is this much more than the program's, which is below DEVFILE_MAX_NUMBER. The guest undoes that in what the driver answers. */
#define SLUICE_DEVFILE_LENT 1024U

/* End of the numbers of descriptors that operations take. */
#define SLUICE_DEVFILE_MAX_NUMBER 4096U

/* Bytes of a request: operation (4), tag (4), address space (8), file (4), flags (4), three arguments (8 each), number of ranges (2), number of descriptors (2), page of the lane in the
 * window (4), then room for DEVFILE_MAX_RANGES ranges and DEVFILE_MAX_DESCRIPTORS descriptors. */
#define SLUICE_DEVFILE_REQUEST_SIZE ((0x38U + 0x100U) + 0x90U)

/* Offset of the descriptors in a request. */
#define SLUICE_DEVFILE_REQUEST_DESCRIPTORS 0x138U

/* Offset of the ranges in a request. */
#define SLUICE_DEVFILE_REQUEST_RANGES 0x38U

/* Bytes of an answer: result (8), negative if it is an error's number; zero (8). */
#define SLUICE_DEVFILE_ANSWER_SIZE 0x10U

/* Operation: the driver is there, and names this life of the device by a number (32 bits) that none of the guest's had before. Answered with the length of what the device is said to be, which
 * is written into the page of the lane. */
#define SLUICE_DEVFILE_HELLO 1U

/* Opens the file under a number that the guest chose. Flags: as open(2). */
#define SLUICE_DEVFILE_OPEN 2U

/* Closes a file. Once it is answered its number is free. It waits for nothing that a driver does. */
#define SLUICE_DEVFILE_RELEASE 3U

/* Reads: address, bytes, and from where: 0 is where the file is, otherwise one more than the offset, with or without DEVFILE_MOVE_NARROW. Flags: as open(2). */
#define SLUICE_DEVFILE_READ 4U

/* Writes: as DEVFILE_READ. */
#define SLUICE_DEVFILE_WRITE 5U

/* A program of 32 bits reads or writes. */
#define SLUICE_DEVFILE_MOVE_NARROW (1ULL << 63ULL)

/* Ioctl: number, argument, and DEVFILE_IOCTL_ bits. Flags: as open(2). One that takes descriptors is not posted in a lane. */
#define SLUICE_DEVFILE_IOCTL 6U

/* A program of 32 bits makes it. */
#define SLUICE_DEVFILE_IOCTL_NARROW 1ULL

/* Its result is a descriptor, whose file becomes one of the device's, as below. */
#define SLUICE_DEVFILE_IOCTL_RESULT 2ULL

/* The descriptor that it answers with is where a range begins, in a word of its own: DEVFILE_IOCTL_DESCRIPTOR is one more than the range's number. */
#define SLUICE_DEVFILE_IOCTL_RANGE 4ULL

/* From this bit on, 16 bits: one more than the offset of the descriptor that it answers with in its structure; 0: it answers with none. The descriptor's file becomes one of
 * the device's, under a number that the guest chose. Such an ioctl is not posted in a lane. */
#define SLUICE_DEVFILE_IOCTL_DESCRIPTOR 16U

/* From this bit on: number of that file. */
#define SLUICE_DEVFILE_IOCTL_FILE 32U

/* What the file is ready for now: events, as poll(2). */
#define SLUICE_DEVFILE_POLL 7U

/* Waits until the file is ready for one of these events, as poll(2). */
#define SLUICE_DEVFILE_AWAIT 8U

/* Interrupts the operation with this tag, as a signal does. It has no tag of its own. */
#define SLUICE_DEVFILE_CANCEL 9U

/* The address space is no more. It has no tag. */
#define SLUICE_DEVFILE_FORGET 10U

/* Answered with 0 by whoever serves the queue: what an operation costs at the least. */
#define SLUICE_DEVFILE_NOTHING 11U

/* Maps a part of the file into the device's memory of maps: offset in the file, bytes (whole pages), and the first page there that it takes with, from bit 32 on, DEVFILE_MAPS_ bits. The guest says which
 * pages are free, and maps them for its process. Flags: as open(2). */
#define SLUICE_DEVFILE_MAP 12U

/* Takes away what DEVFILE_MAP mapped: first page. Once it is answered the pages are free. */
#define SLUICE_DEVFILE_UNMAP 13U

/* Has the request of this number, which was posted in the lane, answered by the queue. */
#define SLUICE_DEVFILE_ADOPT 14U

/* Moves where the file is read and written next, as lseek(2): offset, whence. */
#define SLUICE_DEVFILE_SEEK 15U

/* State of a lane: nobody looks at it.
 *
 * A *lane* is a page that the guest issues for an address space, in which one request at a time is left for a shadow that looks for it. It is *posted* by a change of the state from
 * open, and answered when the state is not posted any more. Who waits too long for that has it adopted (DEVFILE_ADOPT). */
#define SLUICE_DEVFILE_LANE_CLOSED 0U

/* State of a lane: the shadow looks for a request. */
#define SLUICE_DEVFILE_LANE_OPEN 1U

/* State of a lane: there is a request. */
#define SLUICE_DEVFILE_LANE_POSTED 2U

/* Offset of the state (4) in a lane, and of the number of the request that is posted (4). */
#define SLUICE_DEVFILE_LANE_STATE 0U

/* Offset of the result (8) in a lane, and of the number of the request that it answers (4). */
#define SLUICE_DEVFILE_LANE_RESULT 0x40U

/* Offset of the request in a lane. */
#define SLUICE_DEVFILE_LANE_REQUEST 0x80U

/* What is answered in a lane where the shadow has not been given the file: it is to be asked for by the queue. */
#define SLUICE_DEVFILE_UNKNOWN_FILE 4096U

/* Bytes of the device's memory of maps: shared memory region DEVFILE_MAPS_REGION (Virtio 1.2, 2.10). Its page n is reference n of the grant space of
 * the back-end function (crate::grant::GRANT_DEVICE), in which whoever serves the device issues pages of its own memory. */
#define SLUICE_DEVFILE_MAPS_SIZE 0x10000000ULL

/* Identifier of the region. */
#define SLUICE_DEVFILE_MAPS_REGION 0U

/* A map may be read. */
#define SLUICE_DEVFILE_MAPS_READ 1U

/* A map may be written. */
#define SLUICE_DEVFILE_MAPS_WRITE 2U

/* Most maps of a device at once. */
#define SLUICE_DEVFILE_MAX_MAPS 256U

/* Most address spaces of a guest that have a file of the device open. */
#define SLUICE_DEVFILE_MAX_SPACES 32U

/* Most files of a device that are open at once. */
#define SLUICE_DEVFILE_MAX_FILES 256U

/* Bytes of the device's configuration: version (4), mode of the node (4), its path below /dev (64), its class (32). */
#define SLUICE_DEVFILE_CONFIG_SIZE 0x68U

/* Version of the configuration and of the requests. */
#define SLUICE_DEVFILE_VERSION 4U

/* Bytes of the path. */
#define SLUICE_DEVFILE_NODE_SIZE 0x40U

/* Bytes of the class. */
#define SLUICE_DEVFILE_CLASS_SIZE 0x20U

/* Where the numbers of these calls begin (interface(crate::call::interface)). */
#define SLUICE_REGION_CALLS 0x534c0030ULL

/* Asks for the region of a back-end function: its slot. Answered with the guest-physical address of the region in the caller, and in the bits
 * below REGION_UNIT with its length in units. ENOENT: there is none, or the window is not open. */
#define SLUICE_REGION_FIND 0x534c0030ULL

/* Has a device reach the region of a back-end function, in place of any other: slot of the device, slot of the function or REGION_NONE.
 * Answered with the address at which the device finds the region. When the call returns it reaches no other. ENOENT: the device has
 * no regions, or this function none with it. */
#define SLUICE_REGION_USE 0x534c0031ULL

/* Clears pages of a region: slot of the back-end function, first page, number of pages. Answered with their number, or that of the first
 * REGION_MAX_CLEAR. */
#define SLUICE_REGION_CLEAR 0x534c0032ULL

/* No region. */
#define SLUICE_REGION_NONE 0xffULL

/* Bytes of a unit, of which regions are made. */
#define SLUICE_REGION_UNIT 0x200000ULL

/* Most pages that one call clears. */
#define SLUICE_REGION_MAX_CLEAR 512ULL

/* Makes frames semi-writable, or ends that: address of a list of frame numbers of eight bytes each, number of frames,
 * SEMI_SET or SEMI_CLEAR. Devices never reach a semi-writable frame, whatever it is used as, so that its becoming a page table and memory again
 * costs no flush of an IOMMU. Answered with 0; an error says that a frame is not the caller's, and frames before it in the list may be done. */
#define SLUICE_SEMI_WRITABLE 63ULL

/* They are what their use makes of them again: devices reach them as memory, and not as page tables. */
#define SLUICE_SEMI_CLEAR 0ULL

/* Out of the devices' reach from now on. */
#define SLUICE_SEMI_SET 1ULL

/* Most frames of one call. */
#define SLUICE_SEMI_MAX_BATCH 512ULL

/* PCI device identifier of a virtual interface. */
#define SLUICE_VIF_DEVICE 0x0002U

/* PCI class code: Ethernet controller. */
#define SLUICE_VIF_CLASS 0x020000U

/* BAR of the structure, the registers and the MSI-X table. */
#define SLUICE_VIF_BAR 0U

/* Bytes of it. */
#define SLUICE_VIF_BAR_SIZE 0x8000ULL

/* BAR of the port: whatever is written there, the engine looks. */
#define SLUICE_VIF_DOORBELL_BAR 1U

/* Ports of it. */
#define SLUICE_VIF_DOORBELL_SIZE 4U

/* Offset of the MSI-X table. */
#define SLUICE_VIF_MSIX_TABLE 0x6000U

/* Offset of the MSI-X pending bits. */
#define SLUICE_VIF_MSIX_PENDING 0x6800U

/* Message that tells of received frames. */
#define SLUICE_VIF_RECEIVED_VECTOR 0U

/* Message that tells of descriptors that were sent. */
#define SLUICE_VIF_SENT_VECTOR 1U

/* Messages. */
#define SLUICE_VIF_VECTORS 2U

/* Entries of each ring. */
#define SLUICE_VIF_ENTRIES 256U

/* Most pages of a pool. */
#define SLUICE_VIF_POOL 1024U

/* Bytes of a descriptor: number of a page, bytes in it from its beginning on (1-4096), VIF_DESCRIPTOR_ flags; then what is left to be
 * done to a frame, the first ten bytes of a struct virtio_net_hdr (Virtio 1.2, 5.1.6), in the first descriptor of it. */
#define SLUICE_VIF_DESCRIPTOR 16U

/* Flag of a descriptor: the frame goes on in the next one. */
#define SLUICE_VIF_DESCRIPTOR_MORE (1U << 0U)

/* Most descriptors of a frame that is sent. */
#define SLUICE_VIF_MAX_DESCRIPTORS 32U

/* The engine's page, which the driver can read: reads as VIF_MAGIC_VALUE (four bytes). */
#define SLUICE_VIF_MAGIC 0x0000U

/* "SLVF". */
#define SLUICE_VIF_MAGIC_VALUE 0x46564c53U

/* Reads as VIF_VERSION_VALUE (four bytes). */
#define SLUICE_VIF_VERSION 0x0004U

/* Of this interface. */
#define SLUICE_VIF_VERSION_VALUE 1U

/* Station address, six bytes. */
#define SLUICE_VIF_MAC 0x0008U

/* Most bytes of a frame after its header. */
#define SLUICE_VIF_MTU 0x000eU

/* Index: descriptors whose pages the engine has read, and needs no more. */
#define SLUICE_VIF_SENT 0x0040U

/* Index: offered pages that the engine has filled. What is in them is in the ring at VIF_RECEIVED_RING. */
#define SLUICE_VIF_RECEIVED 0x0080U

/* Not zero: the engine does not look by itself. The driver rings the doorbell after it wrote VIF_TO_SEND; it looks here after that. */
#define SLUICE_VIF_DOORBELL_WANTED 0x00c0U

/* Not zero: the driver broke the rules, and nothing more is done for it before it starts anew. */
#define SLUICE_VIF_BROKEN 0x0100U

/* The driver's page: index, descriptors that are to be sent. */
#define SLUICE_VIF_TO_SEND 0x1000U

/* Index: pages that are offered to be filled. */
#define SLUICE_VIF_OFFERED 0x1040U

/* Not zero: the driver wants to hear of what was sent. It looks at VIF_SENT after it wrote this. */
#define SLUICE_VIF_WANTS_SENT 0x1080U

/* Not zero: the driver wants to hear of what was received. It looks at VIF_RECEIVED after it wrote this. */
#define SLUICE_VIF_WANTS_RECEIVED 0x10c0U

/* Descriptors to send, of the driver's. */
#define SLUICE_VIF_SEND_RING 0x2000U

/* Numbers of offered pages, of the driver's: VIF_OFFERED_ENTRY bytes each. */
#define SLUICE_VIF_OFFERED_RING 0x3000U

/* Bytes of an offered page's number. */
#define SLUICE_VIF_OFFERED_ENTRY 2U

/* Descriptors of filled pages, of the engine's. */
#define SLUICE_VIF_RECEIVED_RING 0x4000U

/* Bytes of the structure: what follows are registers, of four bytes. */
#define SLUICE_VIF_STRUCTURE 0x5000U

/* A VIF_COMMAND_; reads as 0 if the last one was done, and as 1 if it was refused. */
#define SLUICE_VIF_COMMAND 0x5000U

/* Begins, with all indices 0. The function must be allowed to master the bus; that this is taken away ends it. */
#define SLUICE_VIF_COMMAND_START 1U

/* Ends: when the write is done, no page of the pool is read or written any more. */
#define SLUICE_VIF_COMMAND_STOP 2U

/* Before a start: hands over as many pages as VIF_POOL_COUNT says, at most VIF_POOL. Page n of the pool is the one whose guest-physical address is
 * word n (of eight bytes) of the list at VIF_POOL_LIST. Those that were handed over before are the guest's alone again. */
#define SLUICE_VIF_COMMAND_POOL 3U

/* Guest-physical address of a list of pages: the low half. */
#define SLUICE_VIF_POOL_LIST 0x5008U

/* And the high half. */
#define SLUICE_VIF_POOL_LIST_HIGH 0x500cU

/* Pages of that list. */
#define SLUICE_VIF_POOL_COUNT 0x5010U

/* PCI device identifier of the function. */
#define SLUICE_SIGNALS_DEVICE 0x0003U

/* PCI class code: system peripheral, other. */
#define SLUICE_SIGNALS_CLASS 0x088000U

/* Of this interface: the PCI revision. */
#define SLUICE_SIGNALS_VERSION_VALUE 1U

/* BAR of the words and the MSI-X table. */
#define SLUICE_SIGNALS_BAR 0U

/* Bytes of it. */
#define SLUICE_SIGNALS_BAR_SIZE 0x2000ULL

/* Bytes of it that are memory. */
#define SLUICE_SIGNALS_MEMORY 0x1000U

/* Word of VIFs that received something: bit n is for VIF n. */
#define SLUICE_SIGNALS_RECEIVED 0x0000U

/* Word of VIFs of which something was sent, likewise. */
#define SLUICE_SIGNALS_SENT 0x0040U

/* Offset of the MSI-X table. */
#define SLUICE_SIGNALS_MSIX_TABLE 0x1000U

/* Offset of the MSI-X pending bits. */
#define SLUICE_SIGNALS_MSIX_PENDING 0x1800U

/* Messages: the one says that bits were set. */
#define SLUICE_SIGNALS_VECTORS 1U

/* BAR of the port. Four bytes that are written there say whose signals are passed on. */
#define SLUICE_SIGNALS_DOORBELL_BAR 1U

/* Ports of it. */
#define SLUICE_SIGNALS_DOORBELL_SIZE 4U

/* VIFs that one write is for: bits 0-15, from the first of a group on. */
#define SLUICE_SIGNALS_GROUP 16U

/* Where the number of the group begins: group n is of the VIFs from n times SIGNALS_GROUP on. */
#define SLUICE_SIGNALS_GROUP_SHIFT 16U

/* Groups. */
#define SLUICE_SIGNALS_GROUPS 4U

/* Bit of the doorbell: something was sent. Without it something was received. */
#define SLUICE_SIGNALS_DOORBELL_SENT (1U << 31U)

/* Offset in the card's first BAR of the page that is shared. */
#define SLUICE_SYMBIOTIC_PAGE 0x6000U

/* How often a cause of the rings was raised, modulo 2^32. Of the hypervisor's. */
#define SLUICE_SYMBIOTIC_RAISED 0x6000U

/* One of the SYMBIOTIC_DOORBELL_ values. Of the hypervisor's. Whoever has written the tail reads it after a full barrier. */
#define SLUICE_SYMBIOTIC_DOORBELL 0x6004U

/* Symbiosis is off: what the page reads as where it is no memory. */
#define SLUICE_SYMBIOTIC_DOORBELL_OFF 0U

/* Nobody looks at the tail unless SYMBIOTIC_RING is written. */
#define SLUICE_SYMBIOTIC_DOORBELL_WANTED 1U

/* The hypervisor looks by itself. */
#define SLUICE_SYMBIOTIC_DOORBELL_IDLE 2U

/* 1: it is too early for another interrupt, and whoever waits for what was raised is looked for when it is not. Of the hypervisor's. */
#define SLUICE_SYMBIOTIC_HELD 0x6008U

/* SYMBIOTIC_RAISED as an interrupt's handler has seen it: the line falls. Of the module's. */
#define SLUICE_SYMBIOTIC_TAKEN 0x6040U

/* SYMBIOTIC_RAISED from which on an interrupt is wanted, once. Of the module's, which reads SYMBIOTIC_RAISED and then SYMBIOTIC_HELD after a
 * full barrier: if more was raised, and nobody is to look, it polls again. */
#define SLUICE_SYMBIOTIC_EVENT 0x6044U

/* Reads as SYMBIOTIC_MAGIC where there is symbiosis. SYMBIOTIC_BEGIN and SYMBIOTIC_END are written here. */
#define SLUICE_SYMBIOTIC_CONTROL 0x7000U

/* "SLSY". */
#define SLUICE_SYMBIOTIC_MAGIC 0x59534c53U

/* Ends it. Causes are in ICR again. */
#define SLUICE_SYMBIOTIC_END 0U

/* Begins it. SYMBIOTIC_RAISED is one more than the module's words, and goes on from where it last was. */
#define SLUICE_SYMBIOTIC_BEGIN 1U

/* Any write: the hypervisor looks at the tail. */
#define SLUICE_SYMBIOTIC_RING 0x7004U

#endif
