/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Structures of ioctls as programs of 32 bits have them, where they are others:
 * pointers and long numbers have four bytes, and numbers of eight bytes lie where
 * there is place for four. Those of which fields are named here end where the
 * kernel's do: their sizes are in the ioctls' numbers.
 *
 * Source: the kernel's headers for programs (videodev2.h, asound.h, drm.h) under the i386
 * psABI.
 */
#include <linux/compat.h>
#include <linux/videodev2.h>
#include <sound/asound.h>

struct v4l2_plane32 {
	u32 bytesused, length;
	union {
		u32 mem_offset;
		compat_ulong_t userptr;
		s32 fd;
	} m;
	u32 data_offset, reserved[11];
};

/* With times of 64 and of 32 bits. */
#define NARROW_BUFFER(name, time)                  \
	struct name {                              \
		u32 index, type, bytesused, flags; \
		u32 field;                         \
		time timestamp[2];                 \
		struct v4l2_timecode timecode;     \
		u32 sequence, memory;              \
		union {                            \
			u32 offset;                \
			compat_ulong_t userptr;    \
			compat_uptr_t planes;      \
			s32 fd;                    \
		} m;                               \
		u32 length, reserved2;             \
		s32 request_fd;                    \
	}
NARROW_BUFFER(v4l2_buffer32, compat_s64);
NARROW_BUFFER(v4l2_buffer32_time32, s32);

struct v4l2_clip32 {
	struct v4l2_rect c;
	compat_uptr_t next;
};

struct v4l2_format32 {
	u32 type;
	union {
		struct {
			struct v4l2_rect w;
			u32 field, chromakey;
			compat_uptr_t clips;
			u32 clipcount;
			compat_uptr_t bitmap;
			u8 global_alpha;
		} win;
		u8 raw_data[200];
	} fmt;
};

struct v4l2_create_buffers32 {
	u32 index, count, memory;
	struct v4l2_format32 format;
	u32 capabilities, flags, reserved[6];
};

struct v4l2_ext_controls32 {
	u32 which, count, error_idx;
	s32 request_fd;
	u32 reserved[1];
	compat_uptr_t controls;
};

struct v4l2_edid32 {
	u32 pad, start_block, blocks, reserved[5];
	compat_uptr_t edid;
};

struct snd_pcm_hw_params32 {
	u32 flags;
	struct snd_mask masks[SNDRV_PCM_HW_PARAM_LAST_MASK -
			      SNDRV_PCM_HW_PARAM_FIRST_MASK + 1],
		mres[5];
	struct snd_interval intervals[SNDRV_PCM_HW_PARAM_LAST_INTERVAL -
				      SNDRV_PCM_HW_PARAM_FIRST_INTERVAL + 1],
		ires[9];
	u32 rmask, cmask, info, msbits, rate_num, rate_den;
	compat_ulong_t fifo_size;
	u8 reserved[64];
};

struct snd_xferi32 {
	compat_long_t result;
	compat_uptr_t buf;
	compat_ulong_t frames;
};

struct snd_xfern32 {
	compat_long_t result;
	compat_uptr_t bufs;
	compat_ulong_t frames;
};

struct snd_ctl_elem_list32 {
	u32 offset, space, used, count;
	compat_uptr_t pids;
	u8 reserved[50];
};

struct drm_version32 {
	s32 version_major, version_minor, version_patchlevel;
	u32 name_len;
	compat_uptr_t name;
	u32 date_len;
	compat_uptr_t date;
	u32 desc_len;
	compat_uptr_t desc;
};

struct drm_unique32 {
	u32 unique_len;
	compat_uptr_t unique;
};
