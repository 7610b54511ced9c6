// SPDX-License-Identifier: GPL-2.0-only
/*
 * The mirrored camera in sysfs: a device of the class "video4linux" with a
 * number of that class, as udev, PipeWire and GStreamer look for one.
 *
 * The V4L2 core knows it as a device of a driver that looks at nothing of what
 * it is asked: calls go to the front end of device files.
 *
 * Source: the kernel's drivers/media/v4l2-core/v4l2-dev.c.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/compat.h>
#include <linux/err.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <media/v4l2-dev.h>
#include <media/v4l2-device.h>

#include "devfile_face.h"

/* Kinds of nodes: their names, before a number. */
static const struct {
	const char *format;
	enum vfl_devnode_type type;
	u32 capability;
} nodes[] = {
	{ "video%u%n", VFL_TYPE_VIDEO, V4L2_CAP_VIDEO_CAPTURE },
	{ "vbi%u%n", VFL_TYPE_VBI, V4L2_CAP_VBI_CAPTURE },
	{ "radio%u%n", VFL_TYPE_RADIO, V4L2_CAP_RADIO },
	{ "swradio%u%n", VFL_TYPE_SDR, V4L2_CAP_SDR_CAPTURE },
	{ "v4l-touch%u%n", VFL_TYPE_TOUCH, V4L2_CAP_TOUCH },
};

struct video_face {
	struct devfile_face face;
	struct v4l2_device parent;
	struct video_device device;
	const struct file_operations *operations;
};

static const struct file_operations *operations_of(struct file *file)
{
	return container_of(video_devdata(file), struct video_face, device)
		->operations;
}

static int face_open(struct file *file)
{
	return operations_of(file)->open(file_inode(file), file);
}

static int face_close(struct file *file)
{
	return operations_of(file)->release(file_inode(file), file);
}

static ssize_t face_read(struct file *file, char __user *to, size_t size,
			 loff_t *at)
{
	return operations_of(file)->read(file, to, size, at);
}

static ssize_t face_write(struct file *file, const char __user *from,
			  size_t size, loff_t *at)
{
	return operations_of(file)->write(file, from, size, at);
}

static __poll_t face_poll(struct file *file, struct poll_table_struct *table)
{
	return operations_of(file)->poll(file, table);
}

/* The core has the ioctls of a program of 32 bits made by this, too. */
static long face_ioctl(struct file *file, unsigned int command,
		       unsigned long argument)
{
	const struct file_operations *operations = operations_of(file);

#ifdef CONFIG_COMPAT
	if (in_compat_syscall())
		return operations->compat_ioctl(file, command, argument);
#endif
	return operations->unlocked_ioctl(file, command, argument);
}

static int face_mmap(struct file *file, struct vm_area_struct *vma)
{
	return operations_of(file)->mmap(file, vma);
}

static const struct v4l2_file_operations face_operations = {
	.owner = THIS_MODULE,
	.open = face_open,
	.release = face_close,
	.read = face_read,
	.write = face_write,
	.poll = face_poll,
	.unlocked_ioctl = face_ioctl,
#ifdef CONFIG_COMPAT
	.compat_ioctl32 = face_ioctl,
#endif
	.mmap = face_mmap,
};

static void face_release(struct video_device *device)
{
	struct video_face *face =
		container_of(device, struct video_face, device);

	v4l2_device_unregister(&face->parent);
	kfree(face);
}

static struct devfile_face *show(const struct devfile_shown *shown)
{
	struct video_face *face;
	const char *name;
	unsigned int number, kind;
	int length = 0, end, error;

	for (kind = 0; kind < ARRAY_SIZE(nodes); kind++)
		if (sscanf(shown->node, nodes[kind].format, &number, &end) ==
			    1 &&
		    !shown->node[end])
			break;
	if (kind == ARRAY_SIZE(nodes) ||
	    !devfile_is_text(shown->text, shown->length))
		return ERR_PTR(-EINVAL);
	face = kzalloc(sizeof(*face), GFP_KERNEL);
	if (!face)
		return ERR_PTR(-ENOMEM);
	error = v4l2_device_register(shown->parent, &face->parent);
	if (error)
		goto free;
	name = devfile_find(shown->text, shown->length, "name", &length);
	snprintf(face->device.name, sizeof(face->device.name), "%.*s", length,
		 name ?: "");
	face->operations = shown->operations;
	face->device.fops = &face_operations;
	face->device.v4l2_dev = &face->parent;
	face->device.device_caps = nodes[kind].capability;
	face->device.vfl_dir = VFL_DIR_RX;
	face->device.release = face_release;
	face->face.kind = &sluice_devfile_video_face;
	error = video_register_device(&face->device, nodes[kind].type,
				      min(number, 255U));
	if (error)
		goto unregister;
	strscpy(face->face.node, dev_name(&face->device.dev),
		sizeof(face->face.node));
	return &face->face;

unregister:
	v4l2_device_unregister(&face->parent);
free:
	kfree(face);
	return ERR_PTR(error);
}

static void hide(struct devfile_face *face)
{
	video_unregister_device(
		&container_of(face, struct video_face, face)->device);
}

static bool is(const struct devfile_face *face, const struct inode *inode)
{
	return inode->i_cdev ==
	       container_of(face, struct video_face, face)->device.cdev;
}

const struct devfile_face_kind sluice_devfile_video_face = {
	.owner = THIS_MODULE,
	.show = show,
	.hide = hide,
	.is = is,
};
EXPORT_SYMBOL_GPL(sluice_devfile_video_face);

MODULE_ALIAS("sluice-devfile-video4linux");
MODULE_DESCRIPTION("Cameras of another domain of the Sluice hypervisor, as V4L2 devices");
MODULE_AUTHOR("The Sluice authors");
MODULE_LICENSE("GPL");
MODULE_VERSION("0.1.0");
