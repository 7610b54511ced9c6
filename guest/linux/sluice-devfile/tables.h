/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Memory that arguments of ioctls lead to, by class of device. What an argument
 * itself is says the ioctl's number; here is what else a driver reaches, and which
 * descriptors it takes or answers with. Where programs of 32 bits have structures
 * of their own, one list serves both: their names end in 32.
 *
 * Source: the kernel's headers for programs. Paradice, 4.1, has its own from an
 * analysis of drivers; docs/analyzer.md says what ours finds.
 */
#include <linux/input.h>
#include <linux/media.h>
#include <linux/tty.h>
#include <linux/videodev2.h>
#include <sound/asound.h>
#include <uapi/drm/radeon_drm.h>
#include <uapi/drm/virtgpu_drm.h>
#include <uapi/linux/dma-buf.h>
#include <uapi/linux/sync_file.h>

#include "lead.h"
#include "narrow.h"

/* No pointer, no count, no condition. */
#define LEAD(ioctl, directions)                                              \
	.number = ioctl, .ways = directions, .pointer = NOTHING,             \
	.follows = NOTHING, .count = NOTHING, .kind = NOTHING,               \
	.when = NOTHING, .frame_bits = NOTHING
/* A pointer. */
#define POINTER(structure, field)                                             \
	.pointer = offsetof(structure, field),                               \
	.pointer_bytes = sizeof_field(structure, field)
/* As many as a field says. */
#define COUNT(structure, field)                                               \
	.count = offsetof(structure, field),                                 \
	.count_bytes = sizeof_field(structure, field)
/* A pointer to elements, as many as another field says. */
#define ARRAY(structure, field, number_of, bytes)                             \
	POINTER(structure, field), COUNT(structure, number_of), .size = bytes
/* A field that a descriptor is answered in. */
#define DESCRIPTOR(structure, field, flags_of)                                \
	.descriptor = 1 + offsetof(structure, field),                        \
	.flags = offsetof(structure, flags_of)
/* The same, for a descriptor that has the flags that they usually have. */
#define USUAL(structure, field)                                              \
	.descriptor = 1 + offsetof(structure, field), .flags = NOTHING
/* A field with a descriptor that is taken; and when it, or one that is answered, is one. */
#define TAKES(structure, field) .takes = 1 + offsetof(structure, field)
#define WHEN(structure, field, bits, are)                                     \
	.when = offsetof(structure, field), .mask = bits, .value = are
#define IN SLUICE_DEVFILE_IN
#define BOTH (SLUICE_DEVFILE_IN | SLUICE_DEVFILE_OUT)

/* Cameras. */

#define CAMERA(direction, nr, structure) _IO##direction('V', nr, structure)
/* A control's value, where it is somewhere else. */
#define CONTROL_LEADS(name, bytes)                                            \
	static const struct lead name[] = {                                  \
		{ LEAD(1, BOTH), COUNT(struct v4l2_ext_control, size),       \
		  .pointer = offsetof(struct v4l2_ext_control, string),      \
		  .pointer_bytes = bytes, .size = 1 },                       \
		{}                                                           \
	}
CONTROL_LEADS(values, 8);
CONTROL_LEADS(values32, 4);
#define SEVERAL_PLANES                                                        \
	(1U << V4L2_BUF_TYPE_VIDEO_CAPTURE_MPLANE |                          \
	 1U << V4L2_BUF_TYPE_VIDEO_OUTPUT_MPLANE)
#define SHARED(structure) WHEN(structure, memory, ~0U, V4L2_MEMORY_DMABUF)
#define PLANE_LEADS(name, structure, plane, is_told)                          \
	static const struct lead name[] = {                                  \
		{ LEAD(1, 0), TAKES(plane, m.fd), SHARED(structure),         \
		  .tells = is_told },                                        \
		{}                                                           \
	}
PLANE_LEADS(planes, struct v4l2_buffer, struct v4l2_plane, false);
PLANE_LEADS(told_planes, struct v4l2_buffer, struct v4l2_plane, true);
PLANE_LEADS(planes32, struct v4l2_buffer32, struct v4l2_plane32, false);
PLANE_LEADS(told_planes32, struct v4l2_buffer32, struct v4l2_plane32, true);
PLANE_LEADS(planes32_time32, struct v4l2_buffer32_time32, struct v4l2_plane32, false);
PLANE_LEADS(told_planes32_time32, struct v4l2_buffer32_time32, struct v4l2_plane32, true);
/* Buffers: planes, memory that drivers share, and the request that they are of. */
#define BUFFER(ioctl, structure, plane, plane_leads, is_told)                 \
	{ LEAD(ioctl, BOTH),                                                 \
	  ARRAY(structure, m.planes, length, sizeof(plane)),                 \
	  .kind = offsetof(structure, type), .kinds = SEVERAL_PLANES,        \
	  .elements = plane_leads },                                         \
	{ LEAD(ioctl, BOTH), TAKES(structure, m.fd), SHARED(structure),      \
	  .kind = offsetof(structure, type), .kinds = ~SEVERAL_PLANES,       \
	  .tells = is_told },                                                \
	{ LEAD(ioctl, BOTH), TAKES(structure, request_fd), .tells = is_told, \
	  WHEN(structure, flags, V4L2_BUF_FLAG_REQUEST_FD,                   \
	       V4L2_BUF_FLAG_REQUEST_FD) }
#define BUFFERS(structure, plane, time)                                       \
	BUFFER(CAMERA(WR, 9, structure), structure, plane, told_planes##time, true),   \
	BUFFER(CAMERA(WR, 15, structure), structure, plane, planes##time, false),      \
	BUFFER(CAMERA(WR, 17, structure), structure, plane, told_planes##time, true),  \
	BUFFER(CAMERA(WR, 93, structure), structure, plane, planes##time, false)
#define CONTROLS(nr, structure, inner)                                        \
	{ LEAD(CAMERA(WR, nr, structure), BOTH), .elements = inner,          \
	  ARRAY(structure, controls, count, sizeof(struct v4l2_ext_control)),\
	  TAKES(structure, request_fd),                                      \
	  WHEN(structure, which, ~0U, V4L2_CTRL_WHICH_REQUEST_VAL) }
#define OVERLAY(nr, structure, clip)                                          \
	{ LEAD(CAMERA(WR, nr, structure), BOTH),                             \
	  ARRAY(structure, fmt.win.clips, fmt.win.clipcount, sizeof(clip)),  \
	  .kind = offsetof(structure, type),                                 \
	  .kinds = BIT(V4L2_BUF_TYPE_VIDEO_OVERLAY) |                        \
		   BIT(V4L2_BUF_TYPE_VIDEO_OUTPUT_OVERLAY) }
/* Memory of the program's that a driver goes on to use: not here. */
#define MEMORY(ioctl, structure)                                              \
	{ LEAD(ioctl, BOTH), .choice = offsetof(structure, memory),          \
	  .refused = BIT(V4L2_MEMORY_USERPTR),                               \
	  .offer = offsetof(structure, capabilities),                        \
	  .not_offered = V4L2_BUF_CAP_SUPPORTS_USERPTR,                      \
	  .not_alone = V4L2_BUF_CAP_SUPPORTS_REQUESTS }
#define EDID(nr, structure)                                                   \
	{ LEAD(CAMERA(WR, nr, structure), BOTH),                             \
	  ARRAY(structure, edid, blocks, 128) }
#define VIDEO_LEADS(w)                                                        \
	BUFFERS(struct v4l2_buffer##w, struct v4l2_plane##w, w),             \
	CONTROLS(71, struct v4l2_ext_controls##w, values##w),         \
	CONTROLS(72, struct v4l2_ext_controls##w, values##w),         \
	CONTROLS(73, struct v4l2_ext_controls##w, values##w),         \
	OVERLAY(4, struct v4l2_format##w, struct v4l2_clip##w),              \
	OVERLAY(5, struct v4l2_format##w, struct v4l2_clip##w),              \
	OVERLAY(64, struct v4l2_format##w, struct v4l2_clip##w),             \
	EDID(40, struct v4l2_edid##w), EDID(41, struct v4l2_edid##w),        \
	MEMORY(VIDIOC_REQBUFS, struct v4l2_requestbuffers),                  \
	MEMORY(CAMERA(WR, 92, struct v4l2_create_buffers##w),                \
	       struct v4l2_create_buffers##w),                               \
	{ LEAD(VIDIOC_EXPBUF, 0),                                            \
	  DESCRIPTOR(struct v4l2_exportbuffer, fd, flags) }

static const struct lead video_leads[] = { VIDEO_LEADS(), {} };
static const struct lead narrow_video_leads[] = {
	VIDEO_LEADS(32),
	BUFFERS(struct v4l2_buffer32_time32, struct v4l2_plane32, 32_time32),
	{}
};

/* Media. */

#define TOPOLOGY(part, count, structure)                                      \
	{ LEAD(MEDIA_IOC_G_TOPOLOGY, BOTH),                                  \
	  ARRAY(struct media_v2_topology, part, count, sizeof(struct structure)) }
static const struct lead media_leads[] = {
	{ LEAD(MEDIA_IOC_REQUEST_ALLOC, 0), .descriptor = 1, .flags = NOTHING },
	TOPOLOGY(ptr_entities, num_entities, media_v2_entity),
	TOPOLOGY(ptr_interfaces, num_interfaces, media_v2_interface),
	TOPOLOGY(ptr_pads, num_pads, media_v2_pad),
	TOPOLOGY(ptr_links, num_links, media_v2_link),
	{}
};

/* Sound. */

#define INTERVAL(structure, parameter)                                        \
	offsetof(structure, intervals[SNDRV_PCM_HW_PARAM_##parameter -       \
				      SNDRV_PCM_HW_PARAM_FIRST_INTERVAL].min)
#define PARAMETERS(structure)                                                 \
	{ LEAD(_IOWR('A', 0x11, structure), 0),                              \
	  .frame_bits = INTERVAL(structure, FRAME_BITS),                     \
	  .sample_bits = INTERVAL(structure, SAMPLE_BITS),                   \
	  .channels = INTERVAL(structure, CHANNELS) }
#define FRAMES(ioctl, structure, ways)                                        \
	{ LEAD(ioctl, ways), ARRAY(structure, buf, frames, A_FRAME) }
/* A pointer for each channel, all to as many samples. */
#define CHANNEL_LEADS(name, structure, ways)                                  \
	static const struct lead name[] = {                                  \
		{ LEAD(1, ways), .pointer = 0,                               \
		  .pointer_bytes = sizeof_field(structure, bufs),            \
		  COUNT(structure, frames), .counted_there = true,           \
		  .size = A_SAMPLE },                                        \
		{}                                                           \
	}
CHANNEL_LEADS(channels_in, struct snd_xfern, IN);
CHANNEL_LEADS(channels_both, struct snd_xfern, BOTH);
CHANNEL_LEADS(channels_in32, struct snd_xfern32, IN);
CHANNEL_LEADS(channels_both32, struct snd_xfern32, BOTH);
#define CHANNELS(ioctl, structure, each)                                      \
	{ LEAD(ioctl, IN), POINTER(structure, bufs),                         \
	  .count = THE_CHANNELS, .size = sizeof_field(structure, bufs),      \
	  .elements = each }
#define ELEMENTS(structure)                                                   \
	{ LEAD(_IOWR('U', 0x10, structure), BOTH),                           \
	  ARRAY(structure, pids, space, sizeof(struct snd_ctl_elem_id)) }
#define TLV(ioctl)                                                            \
	{ LEAD(ioctl, BOTH), .follows = offsetof(struct snd_ctl_tlv, tlv),   \
	  COUNT(struct snd_ctl_tlv, length), .size = 1 }
#define SOUND_LEADS(w)                                                        \
	PARAMETERS(struct snd_pcm_hw_params##w),                             \
	FRAMES(_IOW('A', 0x50, struct snd_xferi##w), struct snd_xferi##w, IN),   \
	FRAMES(_IOR('A', 0x51, struct snd_xferi##w), struct snd_xferi##w, BOTH), \
	CHANNELS(_IOW('A', 0x52, struct snd_xfern##w), struct snd_xfern##w,  \
		 channels_in##w),                                            \
	CHANNELS(_IOR('A', 0x53, struct snd_xfern##w), struct snd_xfern##w,  \
		 channels_both##w),                                          \
	ELEMENTS(struct snd_ctl_elem_list##w),                               \
	TLV(SNDRV_CTL_IOCTL_TLV_READ), TLV(SNDRV_CTL_IOCTL_TLV_WRITE),       \
	TLV(SNDRV_CTL_IOCTL_TLV_COMMAND)

static const struct lead sound_leads[] = { SOUND_LEADS(), {} };
static const struct lead narrow_sound_leads[] = { SOUND_LEADS(32), {} };

/* Input. */

static const struct lead input_leads[] = {
	{ LEAD(EVIOCGMASK, BOTH),
	  ARRAY(struct input_mask, codes_ptr, codes_size, 1) },
	{ LEAD(EVIOCSMASK, IN),
	  ARRAY(struct input_mask, codes_ptr, codes_size, 1) },
	{}
};

/* Terminals. */

static const struct lead terminal_leads[] = {
	{ LEAD(TIOCGPTPEER, 0), .descriptor = THE_RESULT, .flags = THE_ARGUMENT },
	{}
};

/* Graphics. */

/*
 * Of primary and render nodes, what the DRM core and the drivers of virtio's and
 * Radeon cards reach; by size, too: a structure has had fields added at its end, and
 * the core takes each. The numbers of the two drivers' ioctls differ.
 */
#define GRAPHICS(nr, bytes)                                                   \
	_IOC(_IOC_READ | _IOC_WRITE, DRM_IOCTL_BASE, nr, bytes)
#define TEXT(structure, field)                                                \
	{ LEAD(DRM_IOWR(0x00, structure), BOTH),                             \
	  ARRAY(structure, field, field##_len, 1) }
/* Of clients there is one, who asks. Programs of 32 bits have the smaller structure. */
#define CLIENT(bytes)                                                         \
	{ LEAD(GRAPHICS(0x05, bytes), 0), .asker = 1 + 8 }
#define COMMAND_IS(bit)                                                       \
	WHEN(struct drm_virtgpu_execbuffer, flags, bit, bit)
/* Commands, what they use, and fences before and after them. */
#define COMMANDS(bytes)                                                       \
	{ LEAD(GRAPHICS(DRM_COMMAND_BASE + DRM_VIRTGPU_EXECBUFFER, bytes), IN), \
	  ARRAY(struct drm_virtgpu_execbuffer, command, size, 1) },          \
	{ LEAD(GRAPHICS(DRM_COMMAND_BASE + DRM_VIRTGPU_EXECBUFFER, bytes), IN), \
	  ARRAY(struct drm_virtgpu_execbuffer, bo_handles, num_bo_handles, 4) }, \
	{ LEAD(GRAPHICS(DRM_COMMAND_BASE + DRM_VIRTGPU_EXECBUFFER, bytes), IN), \
	  TAKES(struct drm_virtgpu_execbuffer, fence_fd),                    \
	  COMMAND_IS(VIRTGPU_EXECBUF_FENCE_FD_IN) },                         \
	{ LEAD(GRAPHICS(DRM_COMMAND_BASE + DRM_VIRTGPU_EXECBUFFER, bytes), IN), \
	  USUAL(struct drm_virtgpu_execbuffer, fence_fd),                    \
	  COMMAND_IS(VIRTGPU_EXECBUF_FENCE_FD_OUT) }
/*
 * Of a context's parameters the fourth is where its name is (VIRTGPU_CONTEXT_PARAM_DEBUG_NAME,
 * drivers of Linux 6.12; older headers lack it), of which as much is read.
 */
static const struct lead context_parameters[] = {
	{ LEAD(1, IN), POINTER(struct drm_virtgpu_context_set_param, value),
	  .size = 64,
	  .kind = offsetof(struct drm_virtgpu_context_set_param, param),
	  .kinds = BIT(4) },
	{}
};
#define HANDLES(number, structure)                                            \
	{ LEAD(number, IN), ARRAY(structure, handles, count_handles, 4) }
#define POINTS(number, structure, ways)                                       \
	HANDLES(number, structure),                                          \
	{ LEAD(number, ways), ARRAY(structure, points, count_handles, 8) }
/* Screens: what a line of the table names, and as many as that field says. */
#define MODE(name, structure, ways, field, number_of, bytes)                  \
	{ LEAD(DRM_IOCTL_MODE_##name, ways),                                 \
	  ARRAY(struct structure, field, number_of, bytes) }
#define RESOURCES(field, number_of)                                           \
	MODE(GETRESOURCES, drm_mode_card_res, BOTH, field, number_of, 4)
#define CONNECTOR(field, number_of, bytes)                                    \
	MODE(GETCONNECTOR, drm_mode_get_connector, BOTH, field, number_of, bytes)
#define GAMMA(name, ways)                                                     \
	MODE(name, drm_mode_crtc_lut, ways, red, gamma_size, 2),             \
	MODE(name, drm_mode_crtc_lut, ways, green, gamma_size, 2),           \
	MODE(name, drm_mode_crtc_lut, ways, blue, gamma_size, 2)
/* Of each object so many properties as the second array says, one after the other. */
#define ATOMIC(field, bytes, ...)                                             \
	{ LEAD(DRM_IOCTL_MODE_ATOMIC, IN), __VA_ARGS__                       \
	  ARRAY(struct drm_mode_atomic, field, count_objs, bytes) }
#define OF_ALL_OBJECTS                                                        \
	.sums = 1 + offsetof(struct drm_mode_atomic, count_props_ptr),
#define MODE_LEADS                                                            \
	RESOURCES(fb_id_ptr, count_fbs), RESOURCES(crtc_id_ptr, count_crtcs),\
	RESOURCES(connector_id_ptr, count_connectors),                       \
	RESOURCES(encoder_id_ptr, count_encoders),                           \
	CONNECTOR(encoders_ptr, count_encoders, 4),                          \
	CONNECTOR(modes_ptr, count_modes, sizeof(struct drm_mode_modeinfo)), \
	CONNECTOR(props_ptr, count_props, 4),                                \
	CONNECTOR(prop_values_ptr, count_props, 8),                          \
	MODE(GETPLANERESOURCES, drm_mode_get_plane_res, BOTH, plane_id_ptr,  \
	     count_planes, 4),                                               \
	MODE(GETPLANE, drm_mode_get_plane, BOTH, format_type_ptr,            \
	     count_format_types, 4),                                         \
	/* Its first line says what is to be done with the answer. */         \
	{ LEAD(DRM_IOCTL_MODE_GETPROPERTY, BOTH), .names_fences = true },    \
	MODE(GETPROPERTY, drm_mode_get_property, BOTH, values_ptr,           \
	     count_values, 8),                                               \
	MODE(GETPROPERTY, drm_mode_get_property, BOTH, enum_blob_ptr,        \
	     count_enum_blobs, sizeof(struct drm_mode_property_enum)),       \
	MODE(OBJ_GETPROPERTIES, drm_mode_obj_get_properties, BOTH, props_ptr,\
	     count_props, 4),                                                \
	MODE(OBJ_GETPROPERTIES, drm_mode_obj_get_properties, BOTH,           \
	     prop_values_ptr, count_props, 8),                               \
	MODE(GETPROPBLOB, drm_mode_get_blob, BOTH, data, length, 1),         \
	MODE(CREATEPROPBLOB, drm_mode_create_blob, IN, data, length, 1),     \
	MODE(SETCRTC, drm_mode_crtc, IN, set_connectors_ptr,                 \
	     count_connectors, 4),                                           \
	MODE(DIRTYFB, drm_mode_fb_dirty_cmd, IN, clips_ptr, num_clips,       \
	     sizeof(struct drm_clip_rect)),                                  \
	GAMMA(GETGAMMA, BOTH), GAMMA(SETGAMMA, IN),                          \
	{ LEAD(DRM_IOCTL_MODE_ATOMIC, IN), .has_fences = true },             \
	ATOMIC(objs_ptr, 4), ATOMIC(count_props_ptr, 4),                     \
	ATOMIC(props_ptr, 4, OF_ALL_OBJECTS),                                \
	ATOMIC(prop_values_ptr, 8, OF_ALL_OBJECTS),                          \
	{ LEAD(DRM_IOCTL_MODE_CREATE_LEASE, IN),                             \
	  ARRAY(struct drm_mode_create_lease, object_ids, object_count, 4),  \
	  DESCRIPTOR(struct drm_mode_create_lease, fd, flags),               \
	  .reopens = true },                                                 \
	MODE(LIST_LESSEES, drm_mode_list_lessees, BOTH, lessees_ptr,         \
	     count_lessees, 4),                                              \
	MODE(GET_LEASE, drm_mode_get_lease, BOTH, objects_ptr, count_objects, 4)
/* Radeon cards. Commands: addresses of chunks, which say where their words are. */
static const struct lead radeon_words[] = {
	{ LEAD(1, IN),
	  ARRAY(struct drm_radeon_cs_chunk, chunk_data, length_dw, 4) },
	{}
};
static const struct lead radeon_chunks[] = {
	{ LEAD(1, IN), .pointer = 0, .pointer_bytes = 8,
	  .size = sizeof(struct drm_radeon_cs_chunk), .elements = radeon_words },
	{}
};
/* How much is answered depends on what is asked, for which some read a number first. */
#define ANSWER(bytes, first_request, requests)                                \
	{ LEAD(DRM_IOCTL_RADEON_INFO, BOTH),                                 \
	  POINTER(struct drm_radeon_info, value), .size = bytes,             \
	  .kind = offsetof(struct drm_radeon_info, request),                 \
	  .first_kind = first_request, .kinds = requests }
#define LONG_ANSWERS                                                          \
	(BIT(RADEON_INFO_TIMESTAMP) | BIT(RADEON_INFO_NUM_BYTES_MOVED) |     \
	 BIT(RADEON_INFO_VRAM_USAGE) | BIT(RADEON_INFO_GTT_USAGE))
#define TILES BIT(RADEON_INFO_SI_TILE_MODE_ARRAY)
#define MACROTILES BIT(RADEON_INFO_CIK_MACROTILE_MODE_ARRAY)
#define RADEON_LEADS                                                          \
	ANSWER(4, 0, (u32)~(LONG_ANSWERS | TILES | MACROTILES)),             \
	ANSWER(8, 0, LONG_ANSWERS), ANSWER(32 * 4, 0, TILES),                \
	ANSWER(16 * 4, 0, MACROTILES), ANSWER(4, 32, ~0U),                   \
	{ LEAD(DRM_IOCTL_RADEON_CS, IN), .elements = radeon_chunks,          \
	  ARRAY(struct drm_radeon_cs, chunks, num_chunks, 8) },              \
	/* Memory of the program's that the driver goes on to use: not here. */ \
	{ LEAD(DRM_IOCTL_RADEON_GEM_USERPTR, BOTH),                          \
	  .choice = offsetof(struct drm_radeon_gem_userptr, flags),          \
	  .refused = ~0U }
#define GRAPHICS_LEADS(version, unique_name)                                  \
	TEXT(version, name), TEXT(version, date), TEXT(version, desc),       \
	CLIENT(24), CLIENT(40),                                              \
	{ LEAD(DRM_IOCTL_SET_MASTER, 0), .is_openers = true },               \
	{ LEAD(DRM_IOCTL_DROP_MASTER, 0), .is_openers = true },              \
	{ LEAD(DRM_IOWR(0x01, unique_name), BOTH),                           \
	  ARRAY(unique_name, unique, unique_len, 1) },                       \
	MODE_LEADS,                                                          \
	{ LEAD(DRM_IOCTL_PRIME_HANDLE_TO_FD, 0),                             \
	  DESCRIPTOR(struct drm_prime_handle, fd, flags) },                  \
	{ LEAD(DRM_IOCTL_PRIME_FD_TO_HANDLE, 0),                             \
	  TAKES(struct drm_prime_handle, fd) },                              \
	{ LEAD(DRM_IOCTL_SYNCOBJ_HANDLE_TO_FD, 0),                           \
	  USUAL(struct drm_syncobj_handle, fd) },                            \
	{ LEAD(DRM_IOCTL_SYNCOBJ_FD_TO_HANDLE, 0),                           \
	  TAKES(struct drm_syncobj_handle, fd) },                            \
	HANDLES(GRAPHICS(0xc3, 32), struct drm_syncobj_wait),                \
	HANDLES(GRAPHICS(0xc3, 40), struct drm_syncobj_wait),                \
	HANDLES(DRM_IOCTL_SYNCOBJ_RESET, struct drm_syncobj_array),          \
	HANDLES(DRM_IOCTL_SYNCOBJ_SIGNAL, struct drm_syncobj_array),         \
	POINTS(GRAPHICS(0xca, 40), struct drm_syncobj_timeline_wait, IN),    \
	POINTS(GRAPHICS(0xca, 48), struct drm_syncobj_timeline_wait, IN),    \
	POINTS(DRM_IOCTL_SYNCOBJ_QUERY, struct drm_syncobj_timeline_array, BOTH), \
	POINTS(DRM_IOCTL_SYNCOBJ_TIMELINE_SIGNAL,                            \
	       struct drm_syncobj_timeline_array, IN),                       \
	COMMANDS(32), COMMANDS(40), COMMANDS(64),                            \
	{ LEAD(DRM_IOCTL_VIRTGPU_GETPARAM, BOTH),                            \
	  POINTER(struct drm_virtgpu_getparam, value), .size = 4 },          \
	{ LEAD(DRM_IOCTL_VIRTGPU_GET_CAPS, BOTH),                            \
	  ARRAY(struct drm_virtgpu_get_caps, addr, size, 1) },               \
	{ LEAD(DRM_IOCTL_VIRTGPU_RESOURCE_CREATE_BLOB, IN),                  \
	  ARRAY(struct drm_virtgpu_resource_create_blob, cmd, cmd_size, 1) },\
	{ LEAD(DRM_IOCTL_VIRTGPU_CONTEXT_INIT, IN),                          \
	  ARRAY(struct drm_virtgpu_context_init, ctx_set_params, num_params, \
		sizeof(struct drm_virtgpu_context_set_param)),               \
	  .elements = context_parameters },                                  \
	RADEON_LEADS,                                                        \
	/* Files of fences, and of buffers that drivers share. */            \
	{ LEAD(SYNC_IOC_MERGE, 0), TAKES(struct sync_merge_data, fd2) },     \
	{ LEAD(SYNC_IOC_MERGE, 0), USUAL(struct sync_merge_data, fence) },   \
	{ LEAD(SYNC_IOC_FILE_INFO, BOTH),                                    \
	  ARRAY(struct sync_file_info, sync_fence_info, num_fences,          \
		sizeof(struct sync_fence_info)) },                           \
	{ LEAD(DMA_BUF_IOCTL_EXPORT_SYNC_FILE, 0),                           \
	  USUAL(struct dma_buf_export_sync_file, fd) },                      \
	{ LEAD(DMA_BUF_IOCTL_IMPORT_SYNC_FILE, 0),                           \
	  TAKES(struct dma_buf_import_sync_file, fd) }

static const struct lead graphics_leads[] = {
	GRAPHICS_LEADS(struct drm_version, struct drm_unique),
	{}
};
static const struct lead narrow_graphics_leads[] = {
	GRAPHICS_LEADS(struct drm_version32, struct drm_unique32),
	{}
};

/* Packets. */

/*
 * Of netmap's device file, whose kernels' headers lack it: a header leads to a
 * body, by the request in it. Options, another pointer, are not followed: they
 * have the driver go on to use memory of the program's.
 *
 * Source: luigirizzo/netmap at 89607e1406c1, sys/net/netmap.h, version 14.
 */
struct packets_header {
	__u16 version, request;
	__u32 reserved; /* 0, so that the request can be read as four bytes */
	char name[64];
	__u64 options, body;
};
#define REQUESTS(requests, bytes)                                             \
	{ LEAD(_IOWR('i', 151, struct packets_header), BOTH),                \
	  POINTER(struct packets_header, body), .size = bytes,               \
	  .kind = offsetof(struct packets_header, request),                  \
	  .kinds = requests }

static const struct lead packet_leads[] = {
	REQUESTS(BIT(1), 56), /* register */
	REQUESTS(BIT(2), 32), /* port's information */
	REQUESTS(BIT(3), 64), /* attach to a switch */
	REQUESTS(BIT(4) | BIT(5) | BIT(6) | BIT(7) | BIT(13), 8),
	REQUESTS(BIT(8) | BIT(10) | BIT(11), 16),
	REQUESTS(BIT(12), 64), /* pools' information */
	{}
};

static const struct {
	const char *class;
	const struct lead *leads, *narrow;
} classes[] = {
	{ "video4linux", video_leads, narrow_video_leads },
	{ "media", media_leads, media_leads },
	{ "sound", sound_leads, narrow_sound_leads },
	{ "input", input_leads, input_leads },
	{ "tty", terminal_leads, terminal_leads },
	{ "drm", graphics_leads, narrow_graphics_leads },
	{ "misc", packet_leads, packet_leads },
};

#undef IN
#undef BOTH
