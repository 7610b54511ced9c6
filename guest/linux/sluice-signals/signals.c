// SPDX-License-Identifier: GPL-2.0-only
/*
 * Passes the signals of a network of the Sluice hypervisor on: the controller domain's
 * part (`controller = "NAME"` of a network).
 *
 * The engine sets a bit for each interface that is to be signalled (sluice.h, SIGNALS_),
 * and interrupts. The bits are taken, and the hypervisor is told for whom they were.
 * Before the interrupt is enabled and after it is disabled the hypervisor passes signals
 * on itself, so that nothing is to be said when this driver comes or goes.
 *
 * Source: Raj and Schwan, "High Performance and Scalable I/O Virtualization via
 * Self-Virtualized Devices", 2.2.
 */
#include <linux/atomic.h>
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/module.h>
#include <linux/pci.h>

#include "sluice.h"

struct signals {
	void *words;
	unsigned long doorbell;
};

/* Passes on what is in a word: all of a group at once. */
static void pass(struct signals *signals, u32 offset, u32 direction)
{
	u64 bits = xchg((u64 *)(signals->words + offset), 0);
	u32 group;

	for (group = 0; bits; group++, bits >>= SLUICE_SIGNALS_GROUP) {
		u32 vifs = bits & GENMASK(SLUICE_SIGNALS_GROUP - 1, 0);

		if (vifs)
			outl(direction | group << SLUICE_SIGNALS_GROUP_SHIFT | vifs, signals->doorbell);
	}
}

static irqreturn_t on_signals(int irq, void *data)
{
	pass(data, SLUICE_SIGNALS_RECEIVED, 0);
	pass(data, SLUICE_SIGNALS_SENT, SLUICE_SIGNALS_DOORBELL_SENT);
	return IRQ_HANDLED;
}

static void unmap(void *data)
{
	memunmap(data);
}

static int signals_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct signals *signals = devm_kzalloc(&pdev->dev, sizeof(*signals), GFP_KERNEL);
	int error;

	if (!signals)
		return -ENOMEM;
	if (pdev->revision != SLUICE_SIGNALS_VERSION_VALUE ||
	    pci_resource_len(pdev, SLUICE_SIGNALS_BAR) < SLUICE_SIGNALS_BAR_SIZE) {
		dev_err(&pdev->dev, "this module is for another version of the hypervisor\n");
		return -ENODEV;
	}
	error = pcim_enable_device(pdev) ?: pci_request_regions(pdev, KBUILD_MODNAME);
	if (error)
		return error;
	signals->words = memremap(pci_resource_start(pdev, SLUICE_SIGNALS_BAR),
				  SLUICE_SIGNALS_MEMORY, MEMREMAP_WB);
	if (!signals->words)
		return -ENOMEM;
	error = devm_add_action_or_reset(&pdev->dev, unmap, signals->words);
	if (error)
		return error;
	signals->doorbell = pci_resource_start(pdev, SLUICE_SIGNALS_DOORBELL_BAR);
	pci_set_master(pdev);
	error = pci_alloc_irq_vectors(pdev, SLUICE_SIGNALS_VECTORS, SLUICE_SIGNALS_VECTORS,
				      PCI_IRQ_MSIX);
	if (error < 0)
		return error;
	return devm_request_irq(&pdev->dev, pci_irq_vector(pdev, 0), on_signals, 0, KBUILD_MODNAME,
				signals);
}

/* The hypervisor is the one to pass signals on again. */
static void signals_leave(struct pci_dev *pdev)
{
	pci_clear_master(pdev);
}

static const struct pci_device_id ids[] = {
	{ PCI_DEVICE(SLUICE_VENDOR, SLUICE_SIGNALS_DEVICE) },
	{}
};
MODULE_DEVICE_TABLE(pci, ids);

static struct pci_driver signals_driver = {
	.name = KBUILD_MODNAME,
	.id_table = ids,
	.probe = signals_probe,
	.remove = signals_leave,
	.shutdown = signals_leave,
};
module_pci_driver(signals_driver);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Signals of a network of the Sluice hypervisor, passed on");
