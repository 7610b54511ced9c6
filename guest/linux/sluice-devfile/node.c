// SPDX-License-Identifier: GPL-2.0-only
/*
 * The node by which programs open a device: made once a back end answers, with the
 * name and mode that the other domain has for it.
 */
#include <linux/cdev.h>
#include <linux/err.h>
#include <linux/kmod.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/version.h>
#include <linux/virtio_config.h>

#include "devfile.h"
#include "input.h"
#include "lead.h"

#define MINORS 64

static struct class *devfile_class;
static dev_t first_number;
static struct cdev devfile_cdev;
static DEFINE_MUTEX(mirrors_lock); /* mirrors */
static struct mirror *mirrors[MINORS];

/* With mirrors_lock held. */
static struct mirror *mirror_of(const struct inode *inode)
{
	unsigned int i;

	if (inode->i_cdev == &devfile_cdev)
		return mirrors[iminor(inode)];
	for (i = 0; i < MINORS; i++)
		if (mirrors[i] && mirrors[i]->face &&
		    mirrors[i]->face->kind->is &&
		    mirrors[i]->face->kind->is(mirrors[i]->face, inode))
			return mirrors[i];
	return NULL;
}

struct open_file *open_node(const struct inode *inode,
			    struct address_space *mapping)
{
	struct open_file *open = ERR_PTR(-ENODEV);
	struct mirror *mirror;

	mutex_lock(&mirrors_lock);
	mirror = mirror_of(inode);
	if (mirror)
		open = new_file(mirror, mapping);
	mutex_unlock(&mirrors_lock);
	return open;
}

bool is_mirrored(const struct lead *leads)
{
	bool found = false;
	unsigned int i;

	mutex_lock(&mirrors_lock);
	for (i = 0; i < MINORS && !found; i++)
		found = mirrors[i] && READ_ONCE(mirrors[i]->leads) == leads;
	mutex_unlock(&mirrors_lock);
	return found;
}

int claim_minor(struct mirror *mirror)
{
	unsigned int minor;
	int error = -ENOSPC;

	mutex_lock(&mirrors_lock);
	for (minor = 0; minor < MINORS && error; minor++)
		if (!mirrors[minor]) {
			mirrors[minor] = mirror;
			mirror->minor = minor;
			mirror->number = first_number + minor;
			mirror->operations = devfile_cdev.ops;
			error = 0;
		}
	mutex_unlock(&mirrors_lock);
	return error;
}

void release_minor(struct mirror *mirror)
{
	mutex_lock(&mirrors_lock);
	mirrors[mirror->minor] = NULL;
	mutex_unlock(&mirrors_lock);
}

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
static char *devfile_devnode(const struct device *device, umode_t *mode)
#else
static char *devfile_devnode(struct device *device, umode_t *mode)
#endif
{
	struct mirror *mirror = dev_get_drvdata(device);

	if (mode && mirror)
		*mode = mirror->mode;
	return NULL;
}

/* A path below /dev: letters, digits, '-', '_', ':', '.' and '/', and no parts that begin with a dot. */
static bool node_is_plain(const char *node)
{
	size_t len = strnlen(node, SLUICE_DEVFILE_NODE_SIZE);
	size_t i;

	if (len == 0 || len == SLUICE_DEVFILE_NODE_SIZE || node[len - 1] == '/')
		return false;
	for (i = 0; i < len; i++) {
		char c = node[i];
		bool first = i == 0 || node[i - 1] == '/';

		if (first && (c == '.' || c == '/'))
			return false;
		if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') &&
		    !(c >= '0' && c <= '9') && !strchr("-_:./", c))
			return false;
	}
	return true;
}

/* What the back end says of the device, in a lane that nobody uses yet; NULL: nothing. To be freed. */
static char *description(struct mirror *mirror, size_t length)
{
	struct devfile_lane *lane = mirror->lanes;
	char *text;

	text = length ? kmemdup(lane, min_t(size_t, length, PAGE_SIZE),
				GFP_KERNEL) :
			NULL;
	memset(lane, 0, PAGE_SIZE);
	WRITE_ONCE(lane->state, SLUICE_DEVFILE_LANE_CLOSED);
	return text;
}

/* What shows nodes of a class; NULL: it has nothing of its own, or not here. Its owner is held. */
static const struct devfile_face_kind *kind_of(const char *class)
{
	if (!strcmp(class, "input"))
		return &devfile_input_face;
	if (!strcmp(class, "video4linux")) {
		request_module("sluice-devfile-video4linux");
		return symbol_get(sluice_devfile_video_face);
	}
	if (!strcmp(class, "sound")) {
		request_module("sluice-devfile-sound");
		return symbol_get(sluice_devfile_sound_face);
	}
	if (!strcmp(class, "drm")) {
		request_module("sluice-devfile-drm");
		return symbol_get(sluice_devfile_drm_face);
	}
	return NULL;
}

/* Shows a node where programs look for one of its class. Returns whether it is there. */
static bool publish_face(struct mirror *mirror, const char *class,
			 struct device *parent, const char *text,
			 size_t length)
{
	const struct devfile_shown shown = {
		.parent = parent,
		.node = mirror->node,
		.number = mirror->number,
		.text = text,
		.length = length,
		.operations = mirror->operations,
	};
	const struct devfile_face_kind *kind = kind_of(class);
	struct devfile_face *face;

	if (!kind)
		return false;
	/* Who opens it as soon as it is there waits until it is known here. */
	mutex_lock(&mirrors_lock);
	face = kind->show(&shown);
	if (!IS_ERR(face))
		mirror->face = face;
	mutex_unlock(&mirrors_lock);
	if (IS_ERR(face)) {
		dev_info(&mirror->vdev->dev, "%s is not shown as %s: %ld\n",
			 mirror->node, class, PTR_ERR(face));
		module_put(kind->owner);
		return false;
	}
	if (strcmp(face->node, mirror->node))
		dev_info(&mirror->vdev->dev, "%s is %s here\n", mirror->node,
			 face->node);
	return true;
}

/*
 * What a node is below: the function that says who the device is, if the virtio
 * device's has one before it; else the virtio device.
 */
static struct device *parent_of(struct mirror *mirror)
{
	struct pci_dev *function = to_pci_dev(mirror->vdev->dev.parent);
	struct pci_dev *identity = NULL;

	if (PCI_FUNC(function->devfn))
		identity = pci_get_slot(function->bus,
					PCI_DEVFN(mirror->slot, 0));
	return identity ? &identity->dev : get_device(&mirror->vdev->dev);
}

/* Waits until a back end answers, and makes the node. */
void publish(struct work_struct *work)
{
	struct mirror *mirror = container_of(work, struct mirror, publish);
	struct devfile_config config;
	u64 life = READ_ONCE(mirror->life);
	struct device *device, *parent;
	struct slot *slot;
	size_t length;
	char *text;

	slot = take_slot(mirror, false);
	if (!slot)
		return;
	reach_nothing(slot);
	slot->request->operation = cpu_to_le32(SLUICE_DEVFILE_HELLO);
	slot->request->tag = cpu_to_le32(tag_of(mirror, slot));
	slot->request->arguments[0] = cpu_to_le64(READ_ONCE(mirror->identity));
	slot->request->lane =
		cpu_to_le32(mirror->lane_addresses[0] >> PAGE_SHIFT);
	if (submit(mirror, slot, SLOT_WAITED, life)) {
		free_slot(mirror, slot);
		return;
	}
	/* Who serves it may be started in an hour. */
	wait_for_completion(&slot->done);
	if (slot->result < 0) {
		free_slot(mirror, slot);
		return;
	}
	length = min_t(u64, slot->result, PAGE_SIZE);
	free_slot(mirror, slot);
	text = description(mirror, length);

	virtio_cread_bytes(mirror->vdev, 0, &config, sizeof(config));
	if (le32_to_cpu(config.version) != SLUICE_DEVFILE_VERSION ||
	    !node_is_plain(config.node)) {
		dev_err(&mirror->vdev->dev,
			"its configuration is not one that this driver knows\n");
		kfree(text);
		return;
	}
	memcpy(mirror->node, config.node, sizeof(mirror->node));
	mirror->mode = le32_to_cpu(config.mode) & 0666;
	config.class[sizeof(config.class) - 1] = 0;
	mirror->leads = leads_of(config.class, false);
	mirror->narrow_leads = leads_of(config.class, true);
	parent = parent_of(mirror);
	if (!publish_face(mirror, config.class, parent, text,
			  text ? length : 0)) {
		device = device_create(devfile_class, parent, mirror->number,
				       mirror, "%s", mirror->node);
		if (IS_ERR(device))
			dev_err(&mirror->vdev->dev, "no node %s: %ld\n",
				mirror->node, PTR_ERR(device));
		else
			mirror->device = device;
	}
	kfree(text);
	put_device(parent);
}

void unpublish(struct mirror *mirror)
{
	const struct devfile_face_kind *kind;
	struct devfile_face *face;

	flush_work(&mirror->publish);
	mutex_lock(&mirrors_lock);
	face = mirror->face;
	mirror->face = NULL;
	mutex_unlock(&mirrors_lock);
	if (face) {
		kind = face->kind;
		kind->hide(face);
		module_put(kind->owner);
	}
	if (mirror->device)
		device_destroy(devfile_class, mirror->number);
	mirror->device = NULL;
}

int nodes_init(const struct file_operations *operations)
{
	int error;

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 4, 0)
	devfile_class = class_create("sluice-devfile");
#else
	devfile_class = class_create(THIS_MODULE, "sluice-devfile");
#endif
	if (IS_ERR(devfile_class))
		return PTR_ERR(devfile_class);
	devfile_class->devnode = devfile_devnode;
	error = alloc_chrdev_region(&first_number, 0, MINORS, "sluice-devfile");
	if (error)
		goto destroy;
	cdev_init(&devfile_cdev, operations);
	devfile_cdev.owner = THIS_MODULE;
	error = cdev_add(&devfile_cdev, first_number, MINORS);
	if (error)
		goto unregister;
	return 0;

unregister:
	unregister_chrdev_region(first_number, MINORS);
destroy:
	class_destroy(devfile_class);
	return error;
}

void nodes_exit(void)
{
	cdev_del(&devfile_cdev);
	unregister_chrdev_region(first_number, MINORS);
	class_destroy(devfile_class);
}
