// SPDX-License-Identifier: GPL-2.0-only
/*
 * The mirrored primary or render node in sysfs: a device of the class "drm" with a
 * number of that class, by which libdrm and Mesa find a graphics card.
 *
 * The DRM core knows it as a device of a driver that does nothing: a file that is
 * opened at the node is the front end's, and the core is not asked again. The core
 * has a primary node beside each render node; opening that fails.
 *
 * Source: the kernel's drivers/gpu/drm/drm_drv.c and drm_file.c.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <drm/drm_device.h>
#include <drm/drm_drv.h>
#include <drm/drm_file.h>
#include <linux/err.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/version.h>

#include "devfile_face.h"

struct drm_face {
	struct devfile_face face;
	struct drm_device *device;
	dev_t number;
};

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 14, 0)
#define DATED .date = "0",
#else
#define DATED
#endif
/* The front end's operations are the same for all nodes; the first one brings them. */
#define DRIVER(name_of, features)                          \
	static struct drm_driver name_of = {               \
		.driver_features = features,               \
		.name = "sluice-devfile",                  \
		.desc = "Graphics card of another domain", \
		DATED                                      \
	}
/* Each device has a primary node. */
DRIVER(primary_driver, 0);
DRIVER(render_driver, DRIVER_RENDER);

/* Whether a node has this name, with a number. */
static bool is_named(const char *node, const char *format)
{
	unsigned int number;
	int end = 0;

	return sscanf(node, format, &number, &end) == 1 && !node[end];
}

static struct devfile_face *show(const struct devfile_shown *shown)
{
	bool is_primary = is_named(shown->node, "dri/card%u%n");
	struct drm_driver *driver = is_primary ? &primary_driver :
						 &render_driver;
	const struct device *node;
	struct drm_face *face;
	int error;

	if (!is_primary && !is_named(shown->node, "dri/renderD%u%n"))
		return ERR_PTR(-EINVAL);
	face = kzalloc(sizeof(*face), GFP_KERNEL);
	if (!face)
		return ERR_PTR(-ENOMEM);
	face->face.kind = &sluice_devfile_drm_face;
	driver->fops = shown->operations;
	face->device = drm_dev_alloc(driver, shown->parent);
	error = PTR_ERR_OR_ZERO(face->device);
	if (error)
		goto free;
	error = drm_dev_register(face->device, 0);
	if (error)
		goto put;
	node = is_primary ? face->device->primary->kdev :
			    face->device->render->kdev;
	face->number = node->devt;
	snprintf(face->face.node, sizeof(face->face.node), "dri/%s",
		 dev_name(node));
	return &face->face;

put:
	drm_dev_put(face->device);
free:
	kfree(face);
	return ERR_PTR(error);
}

static void hide(struct devfile_face *shown)
{
	struct drm_face *face = container_of(shown, struct drm_face, face);

	drm_dev_unplug(face->device);
	drm_dev_put(face->device);
	kfree(face);
}

static bool is(const struct devfile_face *face, const struct inode *inode)
{
	return inode->i_rdev ==
	       container_of(face, struct drm_face, face)->number;
}

const struct devfile_face_kind sluice_devfile_drm_face = {
	.owner = THIS_MODULE,
	.show = show,
	.hide = hide,
	.is = is,
};
EXPORT_SYMBOL_GPL(sluice_devfile_drm_face);

MODULE_ALIAS("sluice-devfile-drm");
MODULE_DESCRIPTION("Primary and render nodes of another domain of the Sluice hypervisor, as DRM devices");
MODULE_AUTHOR("The Sluice authors");
MODULE_LICENSE("GPL");
MODULE_VERSION("0.1.0");
