// SPDX-License-Identifier: GPL-2.0-only
/*
 * The mirrored render node in sysfs: a device of the class "drm" with a number of
 * that class, by which libdrm and Mesa find a graphics card.
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

/* The front end's operations are the same for all nodes; the first one brings them. */
static struct drm_driver drm_face_driver = {
	.driver_features = DRIVER_RENDER,
	.name = "sluice-devfile",
	.desc = "Graphics card of another domain",
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 14, 0)
	.date = "0",
#endif
};

static struct devfile_face *show(const struct devfile_shown *shown)
{
	struct drm_face *face;
	unsigned int number;
	int end = 0, error;

	if (sscanf(shown->node, "dri/renderD%u%n", &number, &end) != 1 ||
	    shown->node[end])
		return ERR_PTR(-EINVAL);
	face = kzalloc(sizeof(*face), GFP_KERNEL);
	if (!face)
		return ERR_PTR(-ENOMEM);
	face->face.kind = &sluice_devfile_drm_face;
	drm_face_driver.fops = shown->operations;
	face->device = drm_dev_alloc(&drm_face_driver, shown->parent);
	error = PTR_ERR_OR_ZERO(face->device);
	if (error)
		goto free;
	error = drm_dev_register(face->device, 0);
	if (error)
		goto put;
	face->number = face->device->render->kdev->devt;
	snprintf(face->face.node, sizeof(face->face.node), "dri/%s",
		 dev_name(face->device->render->kdev));
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
MODULE_DESCRIPTION("Render nodes of another domain of the Sluice hypervisor, as DRM devices");
MODULE_AUTHOR("The Sluice authors");
MODULE_LICENSE("GPL");
MODULE_VERSION("0.1.0");
