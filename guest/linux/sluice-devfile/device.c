// SPDX-License-Identifier: GPL-2.0-only
/*
 * Device files of another domain, mirrored in this one: the front end.
 *
 * Each is a virtio device with one queue (crates/hypercall, devfile.rs). An
 * operation on the file becomes a request, on which the caller sleeps. What of
 * the caller's memory the operation may reach is faulted in, pinned and
 * declared to the hypervisor before, and withdrawn after; the domain that has
 * the device reaches nothing else. The node is there while a back end answers.
 *
 * A life of the device ends when it is reset: its requests fail with -EIO, and
 * files that were opened in it with -ENODEV, until they are closed. What is
 * mapped of them is gone: SIGBUS.
 *
 * Source: Amiri Sani, Boos, Qin and Zhong, "I/O Paravirtualization at the
 * Device File Boundary", 3.1, 5.1. The parts are named in devfile.h.
 */
#include <linux/io.h>
#include <linux/module.h>
#include <linux/pci.h>

#include "devfile.h"

static int start(struct mirror *mirror)
{
	static atomic_t lives;
	struct virtqueue *queue;

	queue = virtio_find_single_vq(mirror->vdev, queue_answered, "requests");
	if (IS_ERR(queue))
		return PTR_ERR(queue);
	show_lanes(mirror);
	spin_lock_irq(&mirror->lock);
	/* 0 is none; nobody starts devices so often that there is another one. */
	mirror->identity = atomic_inc_return(&lives) ?: atomic_inc_return(&lives);
	mirror->queue = queue;
	spin_unlock_irq(&mirror->lock);
	return 0;
}

/* Ends a life: nothing of it is answered any more. */
static void stop(struct mirror *mirror)
{
	struct virtio_device *vdev = mirror->vdev;
	unsigned long flags;
	unsigned int i;

	spin_lock_irqsave(&mirror->lock, flags);
	mirror->queue = NULL;
	mirror->life++;
	bitmap_zero(mirror->files, SLUICE_DEVFILE_MAX_FILES);
	spin_unlock_irqrestore(&mirror->lock, flags);
	forget_maps(mirror);
	virtio_reset_device(vdev);
	vdev->config->del_vqs(vdev);
	hide_lanes(mirror);
	for (i = 0; i < SLOTS; i++) {
		struct slot *slot = &mirror->slots[i];
		struct open_file *file = NULL;

		spin_lock_irqsave(&mirror->lock, flags);
		if (slot->state >= SLOT_WAITED && slot->state != SLOT_ANSWERED)
			file = answered(mirror, slot, -EIO);
		spin_unlock_irqrestore(&mirror->lock, flags);
		if (file)
			kref_put(&file->users, file_free);
	}
	spin_lock_irqsave(&mirror->lock, flags);
	bitmap_andnot(mirror->lanes_used, mirror->lanes_used,
		      mirror->lanes_lost, SLUICE_DEVFILE_MAX_SPACES);
	bitmap_zero(mirror->lanes_lost, SLUICE_DEVFILE_MAX_SPACES);
	bitmap_zero(mirror->maps_used, MAP_PAGES);
	spin_unlock_irqrestore(&mirror->lock, flags);
	wake_up_all(&mirror->free);
}

static void restart(struct work_struct *work)
{
	struct mirror *mirror = container_of(work, struct mirror, restart);
	struct virtio_device *vdev = mirror->vdev;

	if (!(vdev->config->get_status(vdev) & VIRTIO_CONFIG_S_NEEDS_RESET))
		return;
	virtio_device_freeze(vdev);
	unpublish(mirror);
	if (virtio_device_restore(vdev))
		dev_err(&vdev->dev, "it cannot be started again\n");
}

static int devfile_freeze(struct virtio_device *vdev)
{
	stop(vdev->priv);
	return 0;
}

static int devfile_restore(struct virtio_device *vdev)
{
	struct mirror *mirror = vdev->priv;
	int error = start(mirror);

	if (error)
		return error;
	virtio_device_ready(vdev);
	schedule_work(&mirror->publish);
	return 0;
}

static void devfile_changed(struct virtio_device *vdev)
{
	struct mirror *mirror = vdev->priv;

	schedule_work(&mirror->restart);
}

static int devfile_probe(struct virtio_device *vdev)
{
	struct mirror *mirror;
	int error;

	if (!vdev->dev.parent || !dev_is_pci(vdev->dev.parent))
		return -ENODEV;
	mirror = mirror_new();
	if (!mirror)
		return -ENOMEM;
	INIT_WORK(&mirror->publish, publish);
	INIT_WORK(&mirror->restart, restart);
	mirror->vdev = vdev;
	mirror->slot = PCI_SLOT(to_pci_dev(vdev->dev.parent)->devfn);
	vdev->priv = mirror;
	if (!virtio_get_shm_region(vdev, &mirror->maps,
				   SLUICE_DEVFILE_MAPS_REGION) ||
	    mirror->maps.len < SLUICE_DEVFILE_MAPS_SIZE)
		mirror->maps.len = 0;
	/* Pages that are mapped for programs get the kind of memory that this has. */
	if (mirror->maps.len)
		mirror->maps_memory = memremap(mirror->maps.addr,
					       SLUICE_DEVFILE_MAPS_SIZE,
					       MEMREMAP_WB);
	if (!mirror->maps_memory)
		mirror->maps.len = 0;
	error = claim_minor(mirror);
	if (error)
		goto free;
	error = start(mirror);
	if (error)
		goto release;
	virtio_device_ready(vdev);
	schedule_work(&mirror->publish);
	return 0;

release:
	release_minor(mirror);
free:
	if (mirror->maps_memory)
		memunmap(mirror->maps_memory);
	kref_put(&mirror->users, mirror_free);
	return error;
}

static void devfile_remove(struct virtio_device *vdev)
{
	struct mirror *mirror = vdev->priv;

	cancel_work_sync(&mirror->restart);
	stop(mirror);
	unpublish(mirror);
	release_minor(mirror);
	if (mirror->maps_memory)
		memunmap(mirror->maps_memory);
	kref_put(&mirror->users, mirror_free);
}

static const struct virtio_device_id devfile_ids[] = {
	{ SLUICE_DEVFILE_KIND, VIRTIO_DEV_ANY_ID },
	{},
};
MODULE_DEVICE_TABLE(virtio, devfile_ids);

static ssize_t posted_show(struct device *device,
			   struct device_attribute *attribute, char *text)
{
	struct mirror *mirror = dev_to_virtio(device)->priv;

	return sysfs_emit(text, "%ld\n", atomic_long_read(&mirror->posted));
}

static ssize_t adopted_show(struct device *device,
			    struct device_attribute *attribute, char *text)
{
	struct mirror *mirror = dev_to_virtio(device)->priv;

	return sysfs_emit(text, "%ld\n", atomic_long_read(&mirror->adopted));
}

static DEVICE_ATTR_RO(posted);
static DEVICE_ATTR_RO(adopted);

static struct attribute *devfile_attrs[] = {
	&dev_attr_posted.attr,
	&dev_attr_adopted.attr,
	NULL,
};
ATTRIBUTE_GROUPS(devfile);

static struct virtio_driver devfile_driver = {
	.driver.name = KBUILD_MODNAME,
	.driver.dev_groups = devfile_groups,
	.driver.owner = THIS_MODULE,
	.id_table = devfile_ids,
	.probe = devfile_probe,
	.remove = devfile_remove,
	.config_changed = devfile_changed,
	.freeze = devfile_freeze,
	.restore = devfile_restore,
};

static int __init devfile_init(void)
{
	int error = nodes_init(&devfile_operations);

	if (error)
		return error;
	error = register_virtio_driver(&devfile_driver);
	if (error)
		nodes_exit();
	return error;
}

static void __exit devfile_exit(void)
{
	unregister_virtio_driver(&devfile_driver);
	nodes_exit();
}

module_init(devfile_init);
module_exit(devfile_exit);

MODULE_DESCRIPTION("Device files of another domain of the Sluice hypervisor");
MODULE_AUTHOR("The Sluice authors");
MODULE_LICENSE("GPL");
MODULE_VERSION("0.1.0");
