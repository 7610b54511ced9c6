/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Memory that arguments of ioctls lead to, by class of device. What an argument
 * itself is says the ioctl's number; here is what else a driver reaches.
 *
 * Source: the kernel's headers for programs; Paradice, 4.1, has its own from an
 * analysis of drivers.
 */
#include <linux/input.h>
#include <linux/videodev2.h>
#include <sound/asound.h>

#include "lead.h"

/* No pointer, no count, no condition. */
#define LEAD(ioctl, directions)                                              \
	.number = ioctl, .ways = directions, .pointer = NOTHING,             \
	.follows = NOTHING, .count = NOTHING, .kind = NOTHING,               \
	.frame_bits = NOTHING
/* A pointer to elements, as many as another field says. */
#define ARRAY(structure, field, number_of, bytes)                             \
	.pointer = offsetof(structure, field),                               \
	.count = offsetof(structure, number_of),                             \
	.count_bytes = sizeof_field(structure, number_of), .size = bytes
/* A field that a descriptor is answered in. */
#define DESCRIPTOR(structure, field, flags_of)                                \
	.descriptor = 1 + offsetof(structure, field),                           \
	.flags = offsetof(structure, flags_of)
#define IN SLUICE_DEVFILE_IN
#define BOTH (SLUICE_DEVFILE_IN | SLUICE_DEVFILE_OUT)

/* Cameras. */

static const struct lead control_leads[] = {
	{ LEAD(1, BOTH), ARRAY(struct v4l2_ext_control, string, size, 1) },
	{}
};

#define CONTROLS(ioctl)                                                       \
	{ LEAD(ioctl, BOTH),                                                  \
	  ARRAY(struct v4l2_ext_controls, controls, count,                    \
		sizeof(struct v4l2_ext_control)),                             \
	  .elements = control_leads }
/* Buffers in several planes. */
#define PLANES(ioctl)                                                         \
	{ LEAD(ioctl, BOTH),                                                  \
	  ARRAY(struct v4l2_buffer, m.planes, length,                         \
		sizeof(struct v4l2_plane)),                                   \
	  .kind = offsetof(struct v4l2_buffer, type),                         \
	  .kinds = BIT(V4L2_BUF_TYPE_VIDEO_CAPTURE_MPLANE) |                  \
		   BIT(V4L2_BUF_TYPE_VIDEO_OUTPUT_MPLANE) }
#define OVERLAY(ioctl)                                                        \
	{ LEAD(ioctl, BOTH),                                                  \
	  ARRAY(struct v4l2_format, fmt.win.clips, fmt.win.clipcount,         \
		sizeof(struct v4l2_clip)),                                    \
	  .kind = offsetof(struct v4l2_format, type),                         \
	  .kinds = BIT(V4L2_BUF_TYPE_VIDEO_OVERLAY) |                         \
		   BIT(V4L2_BUF_TYPE_VIDEO_OUTPUT_OVERLAY) }
/* Memory of the program's, or behind a descriptor, that a driver goes on to use: not here. */
#define BUFFERS(ioctl, structure)                                             \
	{ LEAD(ioctl, BOTH), .choice = offsetof(structure, memory),           \
	  .refused = BIT(V4L2_MEMORY_USERPTR) | BIT(V4L2_MEMORY_DMABUF),      \
	  .offer = offsetof(structure, capabilities),                         \
	  .not_offered = V4L2_BUF_CAP_SUPPORTS_USERPTR |                      \
			 V4L2_BUF_CAP_SUPPORTS_DMABUF |                     \
			 V4L2_BUF_CAP_SUPPORTS_REQUESTS }
#define EDID(ioctl)                                                           \
	{ LEAD(ioctl, BOTH), ARRAY(struct v4l2_edid, edid, blocks, 128) }

static const struct lead video_leads[] = {
	CONTROLS(VIDIOC_G_EXT_CTRLS), CONTROLS(VIDIOC_S_EXT_CTRLS),
	CONTROLS(VIDIOC_TRY_EXT_CTRLS), PLANES(VIDIOC_QUERYBUF),
	PLANES(VIDIOC_QBUF), PLANES(VIDIOC_DQBUF), PLANES(VIDIOC_PREPARE_BUF),
	OVERLAY(VIDIOC_G_FMT), OVERLAY(VIDIOC_S_FMT), OVERLAY(VIDIOC_TRY_FMT),
	EDID(VIDIOC_G_EDID), EDID(VIDIOC_S_EDID),
	BUFFERS(VIDIOC_REQBUFS, struct v4l2_requestbuffers),
	BUFFERS(VIDIOC_CREATE_BUFS, struct v4l2_create_buffers),
	{ LEAD(VIDIOC_EXPBUF, 0), DESCRIPTOR(struct v4l2_exportbuffer, fd, flags) },
	{}
};

/* Sound. */

#define FRAMES(ioctl, ways)                                                   \
	{ LEAD(ioctl, ways), ARRAY(struct snd_xferi, buf, frames, 0) }
#define TLV(ioctl)                                                            \
	{ LEAD(ioctl, BOTH), .follows = offsetof(struct snd_ctl_tlv, tlv),    \
	  .count = offsetof(struct snd_ctl_tlv, length),                      \
	  .count_bytes = sizeof_field(struct snd_ctl_tlv, length), .size = 1 }
#define FRAME_BITS                                                            \
	offsetof(struct snd_pcm_hw_params,                                    \
		 intervals[SNDRV_PCM_HW_PARAM_FRAME_BITS -                    \
			   SNDRV_PCM_HW_PARAM_FIRST_INTERVAL]                 \
			 .min)

static const struct lead sound_leads[] = {
	{ LEAD(SNDRV_PCM_IOCTL_HW_PARAMS, 0), .frame_bits = FRAME_BITS },
	FRAMES(SNDRV_PCM_IOCTL_WRITEI_FRAMES, IN),
	FRAMES(SNDRV_PCM_IOCTL_READI_FRAMES, BOTH),
	{ LEAD(SNDRV_CTL_IOCTL_ELEM_LIST, BOTH),
	  ARRAY(struct snd_ctl_elem_list, pids, space,
		sizeof(struct snd_ctl_elem_id)) },
	TLV(SNDRV_CTL_IOCTL_TLV_READ), TLV(SNDRV_CTL_IOCTL_TLV_WRITE),
	TLV(SNDRV_CTL_IOCTL_TLV_COMMAND), {}
};

/* Input. */

static const struct lead input_leads[] = {
	{ LEAD(EVIOCGMASK, BOTH),
	  ARRAY(struct input_mask, codes_ptr, codes_size, 1) },
	{ LEAD(EVIOCSMASK, IN),
	  ARRAY(struct input_mask, codes_ptr, codes_size, 1) },
	{}
};

static const struct {
	const char *class;
	const struct lead *leads;
} classes[] = {
	{ "video4linux", video_leads },
	{ "sound", sound_leads },
	{ "input", input_leads },
};

#undef IN
#undef BOTH
