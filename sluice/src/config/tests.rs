//! What users get wrong, and what they are told.

use super::*;
use sluice_abi::config::{Action, Face, Layout, Reaction};

const GOOD: &str = r#"
[machine]
memory = "1GiB"
cpus = 2

[device.nic0]
pci = "10ec:8029"
qemu = "ne2k_pci"
net = "user"

[domain.zoe]
kernel = "debian-6.1"
initrd = "ne2000-test"
memory = "256MiB"
vcpus = 2
cpus = [0, 1]
devices = [{ use = "nic0", mode = "vpio", mac = "52:54:00:00:00:0a" }]

[domain.alice]
kernel = "debian-6.1"
memory = "192MiB"
paused = true
devices = [{ use = "nic0", mode = "vpio", mac = "52:54:00:00:00:0b" }]
"#;

fn try_load(text: &str) -> Result<Setup, ConfigError> {
    load_text(Path::new("test.toml"), text)
}

/// The complaints about GOOD with one text replaced, as "line: message".
fn complaints(from: &str, to: &str) -> Vec<String> {
    assert!(GOOD.contains(from), "{from:?} is not in the sample");
    match try_load(&GOOD.replacen(from, to, 1)) {
        Ok(_) => Vec::new(),
        Err(ConfigError::Wrong(found)) => {
            assert!(found.list.iter().all(|one| !one.message.is_empty()));
            found.list.iter().map(|one| format!("{}: {}", one.line, one.message)).collect()
        }
        Err(other) => panic!("{other}"),
    }
}

#[track_caller]
fn refused(from: &str, to: &str, expect: &str) {
    let found = complaints(from, to);
    assert!(found.iter().any(|one| one.contains(expect)), "expected {expect:?} in {found:?}");
}

#[test]
fn a_paravirtual_domain_has_as_many_processors_as_there_is_room_for_and_no_devices_but_its_own() {
    assert_eq!(try_load(&GOOD.replace("paused = true", "kind = \"full\"")).unwrap().domains.len(), 2);
    let zoe = "initrd = \"ne2000-test\"";
    let expect = "'zoe' is paravirtual and has devices that it does not own";
    refused(zoe, &format!("{zoe}\nkind = \"paravirtual\""), expect);
    let alone = "[domain.zoe]\nkernel = \"debian-6.1\"\nmemory = \"256MiB\"\nkind = \"paravirtual\"\n";
    let setup = try_load(&format!("{alone}vcpus = 32\n")).unwrap();
    assert_eq!(*setup.domains[0].vcpus.get_ref(), 32);
    let Err(ConfigError::Wrong(found)) = try_load(&format!("{alone}vcpus = 33\n")) else { panic!("33") };
    let message = "'zoe' is paravirtual and has more processors than its interface has room for";
    assert!(found.list.iter().any(|one| one.message.contains(message)));
    let setup = try_load(alone).unwrap();
    assert_eq!(*setup.domains[0].kind.get_ref(), Kind::Paravirtual);
    let owns = |share: &str| {
        let card = "[device.nic0]\npci = \"8086:100e\"\nqemu = \"e1000\"\n";
        format!("{card}{alone}devices = [{{ use = \"nic0\", mode = \"passthrough\"{share} }}]")
    };
    assert_eq!(try_load(&owns("")).unwrap().iommu(), Iommu::Amd, "there is one by itself");
    let wrong = |text: &str| match try_load(text) {
        Err(ConfigError::Wrong(found)) => {
            found.list.iter().map(|one| one.message.clone()).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    for dma in ["fine", "unprotected"] {
        let found = wrong(&owns(&format!(", dma = \"{dma}\"")));
        assert_eq!(
            found,
            ["'zoe' is paravirtual and has a device that reaches other memory than all of its own"]
        );
    }
    let large = owns("").replace("256MiB", "4GiB") + "\n[machine]\nmemory = \"6GiB\"";
    let found = wrong(&large);
    assert_eq!(found, ["'zoe' is paravirtual and has a device where it has memory by its own page numbers"]);
    let bare = owns("") + "\n[machine]\niommu = \"none\"";
    let found = wrong(&bare);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("the machine has no IOMMU"), "{found:?}");
    refused(
        "kernel = \"debian-6.1\"",
        "kernel = \"bare\"\nkind = \"paravirtual\"",
        "a kernel that is none for it",
    );
    refused("paused = true", "kind = \"pv\"", "'pv' is no kind of domain");
}

#[test]
fn what_follows_a_guests_end_is_said_by_words() {
    let with = "paused = true\non_crash = \"keep\"\non_reboot = \"destroy\"\non_poweroff = \"restart\"";
    let setup = try_load(&GOOD.replace("paused = true", with)).unwrap();
    let wanted = Actions { crash: Action::Keep, reboot: Action::Destroy, poweroff: Action::Restart };
    assert_eq!((setup.domains[0].actions, setup.domains[1].actions), (Actions::default(), wanted));
    refused("paused = true", "on_crash = \"reboot\"", "'reboot' is nothing that can follow a guest's end");
    refused("paused = true", "on_crash = true", "on_crash");
}

#[test]
fn a_good_file_is_read_in_its_order() {
    let setup = try_load(GOOD).unwrap();
    let names: Vec<_> = setup.domains.iter().map(|domain| &**domain.name.get_ref()).collect();
    assert_eq!(names, ["zoe", "alice"]);
    assert_eq!(*setup.domains[0].memory.get_ref(), 256 << 20);
    assert_eq!(setup.domains[0].shares[0].mac.as_ref().unwrap().get_ref()[5], 0x0a);
    assert!(setup.domains[1].paused);
    assert_eq!(setup.domains[1].actions, Actions::default());
    assert_eq!(*setup.devices[0].select.get_ref(), Select::Id { vendor: 0x10ec, device: 0x8029, nth: 0 });
}

#[test]
fn unknown_keys_are_refused_with_the_nearest_known_one() {
    refused("vcpus = 2", "vcpu = 2", "15: unknown key 'vcpu' in [domain.zoe]");
    let error = try_load(&GOOD.replace("vcpus = 2", "vcpu = 2")).unwrap_err().to_string();
    assert!(error.contains("help: did you mean 'vcpus'?"), "{error}");
    assert!(error.contains("test.toml:15:1:"), "{error}");
    refused("[machine]", "[machines]", "unknown key 'machines'");
}

#[test]
fn more_domains_than_there_can_be_are_refused() {
    let domain = |index: usize| format!("[domain.d{index}]\nkernel = \"bare\"\nmemory = \"16MiB\"\n");
    let of = |count: usize| {
        "[machine]\nmemory = \"2GiB\"\n".to_owned() + &(0..count).map(domain).collect::<String>()
    };
    assert!(try_load(&of(64)).is_ok());
    let error = try_load(&of(65)).unwrap_err().to_string();
    assert!(error.contains("65 domains are more than the 64 that there can be"), "{error}");
    assert!(error.contains("[domain.d64]"), "{error}");
}

#[test]
fn names_that_could_lead_elsewhere_are_refused() {
    for name in ["", ".", "..", "../../etc", "a/b", "a\\u0000b", "a\\u001b[2J", "-a", "A", &"a".repeat(32)] {
        for what in ["domain.zoe", "device.nic0"] {
            let kind = &what[..6];
            let to = format!("[{kind}.\"{name}\"]");
            refused(&format!("[{what}]"), &to, &format!("cannot be the name of a {kind}"));
        }
    }
    // Its console would be the file of the hypervisor's log.
    refused("domain.zoe", "domain.sluice", "a domain cannot be called 'sluice'");
}

#[test]
fn all_complaints_come_at_once() {
    let text = GOOD.replace("vcpus = 2", "vcpus = 200").replace("192MiB", "192");
    let ConfigError::Wrong(found) = try_load(&text).unwrap_err() else { panic!() };
    assert_eq!(found.list.iter().map(|one| one.line).collect::<Vec<_>>(), [15, 21]);
}

#[test]
fn values_out_of_range_are_refused() {
    refused("vcpus = 2", "vcpus = 0", "15: 'vcpus' is 0, out of range");
    refused("vcpus = 2", "vcpus = \"two\"", "must be a whole number, not a string");
    refused("cpus = [0, 1]", "cpus = [0, 2]", "16: there is no physical processor 2");
    refused("cpus = [0, 1]", "cpus = [0, 1, 1]", "'cpus' names 3 processors for 2 vcpus");
    refused("192MiB", "1MiB", "21: 1 MiB cannot be the memory of a guest");
    refused("192MiB", "193MiB", "193 MiB cannot be the memory of a guest");
}

#[test]
fn memory_must_fit_the_machine() {
    refused("memory = \"1GiB\"", "memory = \"400MiB\"", "21: the 192 MiB of 'alice' do not fit");
}

#[test]
fn station_addresses_must_be_fit_and_different() {
    refused("00:0b", "00:0a", "23: 52:54:00:00:00:0a is the address of 'zoe' already (line 17)");
    refused("52:54:00:00:00:0b", "53:54:00:00:00:0b", "is a group (multicast) address");
    refused("52:54:00:00:00:0b", "52:54:00:00:0b", "is no station address");
    refused(", mac = \"52:54:00:00:00:0b\"", "", "needs an address for each guest");
}

#[test]
fn devices_are_shared_in_one_way_only() {
    refused(
        "mode = \"vpio\", mac = \"52:54:00:00:00:0b\"",
        "mode = \"passthrough\"",
        "two incompatible ways",
    );
    let both = GOOD.replace("mode = \"vpio\"", "mode = \"passthrough\"");
    let error = try_load(&both).unwrap_err().to_string();
    assert!(error.contains("23:20: error: 'nic0' is passed through to 'zoe' already (line 17)"), "{error}");
    refused("use = \"nic0\"", "use = \"nic1\"", "no device is called 'nic1'");
    let weighed = GOOD.replacen("mode = \"vpio\"", "mode = \"vpio\", weight = 3, max_wait_ms = 5", 1);
    assert!(try_load(&weighed).is_ok());
    refused("mode = \"vpio\"", "mode = \"vpio\", weight = 0", "weight");
    refused("mode = \"vpio\"", "mode = \"passthrough\", weight = 2", "does not change hands");
}

/// Only the hypervisor's driver of a NIC can pace it: who has it in turns, or for itself, sends as it likes.
#[test]
fn a_rate_is_of_a_nic_that_the_hypervisor_drives() {
    let limited = GOOD.replace("net = \"user\"", "net = \"user\"\nrate = \"20Mbit\"");
    let error = try_load(&limited).unwrap_err().to_string();
    assert!(error.contains("nobody holds what 'nic0' sends to a rate"), "{error}");
    for other in [
        limited.replace("ne2k_pci", "e1000").replace("10ec:8029", "8086:100e"),
        limited.replace("vpio", "emulated"),
    ] {
        assert_eq!(
            try_load(&other).unwrap().devices[0].rate.as_ref().map(|rate| *rate.get_ref()),
            Some(20_000_000)
        );
        let error = try_load(&other.replace("20Mbit", "20 mbit")).unwrap_err().to_string();
        assert!(error.contains("'20 mbit' is no rate"), "{error}");
    }
}

#[test]
fn interfaces_are_on_networks_that_a_processor_serves() {
    const ALICE: &str = "devices = [{ use = \"nic0\", mode = \"vpio\", mac = \"52:54:00:00:00:0b\" }]";
    const ZOE: &str = "vcpus = 2\ncpus = [0, 1]\ndevices = [{ use = \"nic0\", mode = \"vpio\", mac = \"52:54:00:00:00:0a\" }]";
    const VIF: &str = "{ mode = \"vif\", network = \"lan\", mac = \"52:54:00:00:00:0c\", share = 3, limit = \"20Mbit\", vlan = 4094, mtu = 576, moderation = 0, addresses = [\"10.0.0.2\", \"fd00::2\"] }";
    const OTHER: &str = "{ mode = \"vif\", network = \"lan\", mac = \"52:54:00:00:00:0d\" }";
    let network = "[network.lan]\ncores = [1]\nnic = \"nic0\"\n";
    let with = |network: &str, zoe: &str, alice: &str| {
        let text = GOOD.replace(ZOE, &format!("cpus = [0]\ndevices = [{zoe}]"));
        text.replace(ALICE, &format!("devices = [{alice}]")) + network
    };
    let setup = try_load(&with(network, VIF, OTHER)).unwrap();
    let networks = vif::compile_networks(&setup);
    assert_eq!(
        (networks.len(), &*networks[0].name, &*networks[0].cores, networks[0].layout, networks[0].nic),
        (1, "lan", &[1][..], Layout::Split, Some(0))
    );
    let several = "[network.lan]\ncores = [2, 1]\nlayout = \"spread\"\nsignal_bits = 8\nmtu = 9000\n";
    let three = with(several, VIF, OTHER).replace("cpus = 2", "cpus = 3");
    let compiled = vif::compile_networks(&try_load(&three).unwrap());
    assert_eq!((&*compiled[0].cores, compiled[0].layout), (&[2, 1][..], Layout::Spread));
    assert_eq!((compiled[0].signal_bits, compiled[0].mtu), (Some(8), 9000));
    let compiled = vif::compile(&setup, &setup.domains[0]);
    let expected = sluice_abi::config::Vif {
        name: "vif0".into(),
        network: 0,
        mac: [0x52, 0x54, 0, 0, 0, 0x0c],
        share: 3,
        limit: Some(20_000_000),
        vlan: Some(4094),
        mtu: 576,
        addresses: vec![
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2],
            [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2],
        ],
        moderation: 0,
        face: Face::Virtio,
    };
    assert_eq!(compiled, [expected]);
    let native = VIF.replace("vlan = 4094", "face = \"native\"");
    let setup = try_load(&with(network, &native, OTHER)).unwrap();
    let compiled = &vif::compile(&setup, &setup.domains[0])[0];
    assert_eq!((compiled.face, compiled.mtu), (Face::Native, 576));
    let card = VIF.replace("mtu = 576, moderation = 0", "face = \"e1000\"");
    let setup = try_load(&with(network, &card, OTHER)).unwrap();
    assert_eq!(vif::compile(&setup, &setup.domains[0])[0].face, Face::E1000);
    assert!(describe(Path::new("x"), &setup).contains("vif0 (vif on lan)"));
    let wrong = |network: &str, zoe: &str, alice: &str, expect: &str| {
        let found = try_load(&with(network, zoe, alice)).unwrap_err().to_string();
        assert!(found.contains(expect), "expected {expect:?} in {found}");
    };
    let change = |from: &str, to: &str| {
        assert!(VIF.contains(from), "{from}");
        VIF.replace(from, to)
    };
    for (from, to, expect) in [
        ("network = \"lan\"", "network = \"wan\"", "no network is called 'wan'"),
        ("network = \"lan\", ", "", "lacks 'network'"),
        (", mac = \"52:54:00:00:00:0c\"", "", "lacks 'mac'"),
        ("00:0c", "00:0d", "is the address of 'zoe' already"),
        ("52:54:00:00:00:0c", "53:54:00:00:00:0c", "is a group (multicast) address"),
        ("share = 3", "share = 0", "'share' is 0, out of range"),
        ("20Mbit", "20MB", "'20MB' is no rate"),
        ("vlan = 4094", "vlan = 4095", "'vlan' is 4095, out of range"),
        ("mtu = 576", "mtu = 9001", "'mtu' is 9001, out of range"),
        ("mtu = 576", "mtu = 1501", "the network 'lan' carries no frames of 1501 bytes"),
        ("10.0.0.2", "10.0.0.2/24", "'10.0.0.2/24' is no IP address"),
        ("\"fd00::2\"", "7", "is no IP address"),
        (
            "\"fd00::2\"",
            "\"::1\", \"::2\", \"::3\", \"::4\", \"::5\", \"::6\", \"::7\", \"::8\"",
            "at most 8 addresses",
        ),
        ("moderation = 0", "moderation = 1001", "'moderation' is 1001, out of range"),
        ("mtu = 576", "face = \"tulip\"", "'tulip' is no face of an interface"),
        ("mtu = 576, moderation = 0", "mtu = 576, face = \"e1000\"", "cannot tell its driver of 'mtu'"),
        ("mtu = 576", "face = \"e1000\"", "cannot tell its driver of 'moderation'"),
        ("mtu = 576", "name = \"A\"", "'A' cannot be the name of a virtual device"),
        ("mtu = 576", "source = \"br0\"", "unknown key 'source'"),
    ] {
        wrong(network, &change(from, to), OTHER, expect);
    }
    let twice = format!("{VIF}, {}", OTHER.replace("0d", "0e").replace(" }", ", name = \"vif0\" }"));
    wrong(network, &twice, OTHER, "'zoe' has two virtual devices called 'vif0'");
    for (text, expect) in [
        ("[network.lan]\n", "names no processor that serves it"),
        ("[network.lan]\ncores = [0]\n", "processor 0 cannot serve a network"),
        ("[network.lan]\ncores = [2]\n", "there is no physical processor 2: the machine has 2"),
        ("[network.lan]\ncores = [1, 1]\n", "processor 1 is named twice"),
        ("[network.lan]\ncores = [1, 2, 3, 4, 5]\n", "names 5 processors, and has 4 at most"),
        ("[network.lan]\ncores = [1]\nlayout = \"both\"\n", "'both' is no layout of engines"),
        ("[network.lan]\ncores = [1]\nnic = \"nic1\"\n", "no device is called 'nic1'"),
        (
            "[network.lan]\ncores = [1]\nnic = \"nic0\"\n[network.two]\ncores = [1]\nnic = \"nic0\"\n",
            "is the card of the network 'lan' already",
        ),
        ("[network.lan]\ncores = [1]\nmtu = 1499\n", "'mtu' is 1499, out of range"),
        (
            "[network.lan]\ncores = [1]\nnic = \"nic0\"\nmtu = 9000\n",
            "'nic0' carries no frames of 9000 bytes",
        ),
        ("[network.LAN]\ncores = [1]\n", "'LAN' cannot be the name of a network"),
        ("[network.lan]\ncores = [1]\ncontroller = \"zo\"\n", "no domain of this file is called 'zo'"),
        ("[network.lan]\ncores = [1]\ncontroller = 1\n", "controller"),
    ] {
        wrong(text, VIF, OTHER, expect);
    }
    // Zoe has an interface on the network herself.
    let controlled = "[network.lan]\ncores = [1]\ncontroller = \"zoe\"\n";
    let setup = try_load(&with(controlled, VIF, OTHER)).unwrap();
    assert_eq!(vif::compile_networks(&setup)[0].controller, Some(0));
    let another = "[network.two]\ncores = [1]\ncontroller = \"alice\"\n[network.lan]\ncores = [1]\n";
    let setup = try_load(&with(another, VIF, OTHER)).unwrap();
    let controllers =
        vif::compile_networks(&setup).iter().map(|network| network.controller).collect::<Vec<_>>();
    assert_eq!(controllers, [Some(1), None]);
    let paravirtual = "[domain.eve]\nkernel = \"debian-6.1\"\nmemory = \"64MiB\"\nkind = \"paravirtual\"\n";
    let by_eve = format!("{paravirtual}[network.lan]\ncores = [1]\ncontroller = \"eve\"\n");
    wrong(&by_eve, VIF, OTHER, "'eve' is paravirtual, and cannot pass signals on");
    let most =
        (0..28).map(|nth| OTHER.replace("00:0d", &format!("01:{nth:02x}"))).collect::<Vec<_>>().join(", ");
    assert!(try_load(&with(network, &most, OTHER)).is_ok());
    wrong(controlled, &most, OTHER, "'zoe' has and serves 29 devices");
    let pinned = with(network, VIF, OTHER).replace("cpus = [0]", "cpus = [1]");
    let found = try_load(&pinned).unwrap_err().to_string();
    assert!(found.contains("processor 1 serves the network 'lan', and runs no guests"), "{found}");
    let taken = GOOD.replace(ZOE, &format!("devices = [{VIF}]")) + network;
    assert!(try_load(&taken).unwrap_err().to_string().contains("'nic0' is the card of 'alice' already"));
    for (card, message) in [
        ("virtio-net-pci,disable-legacy=on,iommu_platform=on", None),
        ("virtio-net-pci,disable-legacy=on", Some("'nic0' would be a card of the old kind")),
        ("virtio-net-pci", Some("'nic0' would be a card of the old kind")),
    ] {
        let text = with(network, VIF, OTHER).replace("10ec:8029", "1af4:1041").replace("ne2k_pci", card);
        let found = try_load(&text).map(|_| ()).map_err(|error| error.to_string());
        match message {
            None => assert_eq!(found, Ok(())),
            Some(message) => assert!(found.is_err_and(|found| found.contains(message))),
        }
    }
    let other_card = with(network, VIF, OTHER).replace("10ec:8029", "1234:11e8").replace("ne2k_pci", "edu");
    assert!(
        try_load(&other_card).unwrap_err().to_string().contains("'nic0' is no card that an engine drives")
    );
}

#[test]
fn virtual_devices_are_served_by_another_domain() {
    const WHOLE: &str = "devices = [{ use = \"nic0\", mode = \"vpio\", mac = \"52:54:00:00:00:0b\" }]";
    let disk = "{ mode = \"virtio\", type = \"blk\", by = \"zoe\", source = \"/dev/sda\" }";
    let card =
        "{ mode = \"virtio\", type = \"net\", by = \"zoe\", source = \"br0\", mac = \"52:54:00:00:00:0c\" }";
    let with = |devices: &str| format!("devices = [{devices}]\ngrants = \"all\"");
    let setup = try_load(&GOOD.replace(WHOLE, &with(&format!("{disk}, {card}, {disk}")))).unwrap();
    let compiled = virtio::compile(&setup, &setup.domains[1]);
    let names: Vec<&str> = compiled.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["blk0", "net0", "blk1"]);
    assert_eq!((compiled[0].by, compiled[0].source.as_str()), (0, "/dev/sda"));
    let refused = |devices: String, expect: &str| refused(WHOLE, &devices, expect);
    let files = disk.replace("blk", "fs");
    refused(with(&files), "a file system is served by a vhost-user back end");
    let files = files.replace("/dev/sda", "vhost-user:/run/files.sock");
    let setup = try_load(&GOOD.replace(WHOLE, &with(&files))).unwrap();
    let compiled = virtio::compile(&setup, &setup.domains[1]);
    assert_eq!((&*compiled[0].name, compiled[0].kind), ("fs0", sluice_abi::config::VirtioKind::Files));
    refused(
        with(&files.replace("source", "queues = 2, source")),
        "the queues of a file system are not chosen here",
    );
    refused(
        with(&files.replace("source", "mac = \"52:54:00:00:00:0d\", source")),
        "a file system has no station address",
    );
    let random = disk.replace("blk", "rng").replace("/dev/sda", "/dev/hwrng");
    let setup = try_load(&GOOD.replace(WHOLE, &with(&random))).unwrap();
    let compiled = virtio::compile(&setup, &setup.domains[1]);
    assert_eq!((&*compiled[0].name, compiled[0].kind), ("rng0", sluice_abi::config::VirtioKind::Entropy));
    refused(
        with(&random.replace("/dev/hwrng", "vhost-user:/run/rng.sock")),
        "only disks and file systems can be served by a vhost-user back end",
    );
    refused(
        with(&random.replace("source", "queues = 2, source")),
        "the queues of a source of random numbers are not chosen here",
    );
    refused(with(&disk.replace("zoe", "joe")), "no domain is called 'joe'");
    let in_front = |name: &str, devices: &str| {
        GOOD.replace(WHOLE, &with(devices)).replace("[machine]", &format!("[machine]\nfocus = \"{name}\""))
    };
    let file = "{ mode = \"devfile\", by = \"zoe\", source = \"/dev/input/event1\" }";
    let setup = try_load(&in_front("alice", file)).unwrap();
    assert_eq!(virtio::foreground(&setup), Some(sluice_abi::DomainId(1)));
    for (name, devices) in [("alicia", file), ("zoe", file), ("alice", disk)] {
        let error = try_load(&in_front(name, devices)).unwrap_err().to_string();
        assert!(error.contains(&format!("no domain with a device file is called '{name}'")), "{error}");
    }
    refused(with(&disk.replace("zoe", "alice")), "a guest cannot serve its own virtual device");
    refused(with(&disk.replace("blk", "disk")), "'disk' is no type of a virtual device");
    refused(with(&disk.replace("/dev/sda", "")), "this cannot be what is behind 'blk0'");
    refused(with(&card.replace("mac", "model")), "lacks 'mac'");
    refused(with(&card.replace("0c", "0a")), "is the address of 'zoe' already");
    refused(with(&card.replace("net", "blk")), "a disk has no station address");
    let queues = |device: &str, queues: u8| device.replace("source", &format!("queues = {queues}, source"));
    let several =
        try_load(&GOOD.replace(WHOLE, &with(&[card, &queues(&card.replace("0c", "0d"), 8)].join(", "))));
    let pairs = |device: &sluice_abi::config::Virtio| match device.kind {
        sluice_abi::config::VirtioKind::Net { pairs, .. } => pairs,
        _ => 0,
    };
    let setup = several.unwrap();
    let compiled = virtio::compile(&setup, &setup.domains[1]);
    assert_eq!(compiled.iter().map(pairs).collect::<Vec<_>>(), [1, 8]);
    refused(with(&queues(card, 0)), "queues");
    refused(with(&queues(card, 9)), "queues");
    refused(with(&queues(disk, 2)), "the queues of a disk are not chosen here");
    refused(
        with(&[disk.replace("\"zoe\"", "\"zoe\", name = \"a\"").as_str(); 2].join(", ")),
        "two virtual devices called 'a'",
    );
    refused(with(&vec![disk; 29].join(", ")), "more than the 28 that fit");
    // An IOMMU that the guest drives takes a slot, too.
    let full = with(&vec![disk; 29].join(", "));
    refused(full.replace("\"all\"", "\"iommu\""), "has and serves 30 devices");
    let file = "{ mode = \"devfile\", by = \"zoe\", source = \"/dev/input/event1\" }";
    let setup = try_load(&GOOD.replace(WHOLE, &with(&format!("{file}, {disk}, {file}")))).unwrap();
    let compiled = virtio::compile(&setup, &setup.domains[1]);
    let found: Vec<_> = compiled.iter().map(|device| (device.name.as_str(), device.kind)).collect();
    let kind = sluice_abi::config::VirtioKind::DeviceFile;
    assert_eq!(found, [("file0", kind), ("blk0", sluice_abi::config::VirtioKind::Block), ("file1", kind)]);
    refused(with(&file.replace("by = \"zoe\", ", "")), "lacks 'by'");
    let identity = file.replace(", source", ", identity = \"wire\", source");
    refused(with(&identity), "'zoe' has no device 'wire' passed through to it");
    refused(with(&disk.replace(", source", ", identity = \"wire\", source")), "'identity'");
    let region = |size: &str| with(&file.replace(", source", &format!(", region = \"{size}\", source")));
    refused(region("1MiB"), "'1MiB' is no size of a region");
    refused(region("66MiB"), "'66MiB' is no size of a region");
    refused(region("0MiB"), "'0MiB' is no size of a region");
    refused(region("2MiB"), "a region is held by a device, and none is named");
    refused(with(&file.replace(", source = \"/dev/input/event1\"", "")), "lacks 'source'");
    refused(with(&file.replace("by", "type = \"blk\", by")), "'type'");
    let long = format!("/dev/{}", "a".repeat(64));
    for path in ["/etc/passwd", "/dev/", "/dev/../etc/passwd", "/dev//null", "/dev/./null", &long] {
        let message = format!("'{path}' is no device file");
        self::refused(WHOLE, &with(&file.replace("/dev/input/event1", path)), &message);
    }
    refused(format!("devices = [{disk}]"), "'alice' lends 'zoe' no memory");
    refused(with(disk).replace("\"all\"", "\"some\""), "'some' is nothing that a guest can lend");
}

#[test]
fn reactions_to_refusals_name_registers_of_the_model() {
    let with = |keys: &str| format!("mode = \"vpio\", {keys}");
    let said = |keys: &str, expect: &str| refused("mode = \"vpio\"", &with(keys), expect);
    said("on_refusal = \"panic\"", "'panic' is no reaction to a refused access");
    said("refusals = { CMD = 1 }", "a reaction must be a string, not a whole number");
    said("refusals = \"CMD\"", "'refusals' must be a table, not a string");
    said("refusals = { CDM = \"discard\" }", "the ne2000 has no register 'CDM'");
    said("refusals = { RSR = \"discard\", RCR = \"interrupt\" }", "'RSR' and 'RCR' are one register");
    refused(
        "mode = \"vpio\"",
        "mode = \"emulated\", on_refusal = \"discard\"",
        "refuses no access to a register in this mode",
    );
    let master = |pci: &str, keys: &str| one_device("", pci, &format!("{VPIO}, {keys}"));
    for keys in
        ["on_refusal = \"discard\"", "on_refusal = \"deferred-error\"", "on_refusal = \"machine-check\""]
    {
        assert!(messages(&master(E1000, keys)).is_empty() && messages(&master("10ec:8139", keys)).is_empty());
    }
    let interrupt = "on_refusal = \"interrupt\"";
    assert!(messages(&master("10ec:8139", interrupt)).is_empty());
    for (keys, expect) in [
        (interrupt, "no interrupt for a transfer that is refused"),
        ("refusals = { TDT = \"discard\" }", "refuses transfers, and no access to a register"),
    ] {
        assert!(messages(&master(E1000, keys)).iter().any(|message| message.contains(expect)));
    }
    let disk =
        |keys: &str| one_device("", "1b36:0010", &format!("mode = \"vpio\", sectors = \"0..8\", {keys}"));
    for (reaction, word) in [(Reaction::Interrupt, "interrupt"), (Reaction::MachineCheck, "machine-check")] {
        let setup = try_load(&disk(&format!("on_refusal = \"{word}\""))).unwrap();
        let attachment = setup.domains[0].shares[0].attachment(&setup).unwrap();
        let Attachment::Sectors(sectors) = &attachment else { panic!("{attachment:?}") };
        assert_eq!(sectors.on_refusal, Some(reaction));
        assert_eq!(attachment.machine_check(), reaction == Reaction::MachineCheck);
    }
    for (keys, expect) in [
        ("on_refusal = \"discard\"", "says of each command how it ended"),
        ("refusals = { CMD = \"discard\" }", "refuses commands and no access to a register"),
    ] {
        assert!(messages(&disk(keys)).iter().any(|message| message.contains(expect)));
    }
    let keys = "on_refusal = \"interrupt\", refusals = { RCR = \"discard\", 9346CR = \"machine-check\" }";
    let setup = try_load(&GOOD.replacen("mode = \"vpio\"", &with(keys), 1)).unwrap();
    let told = refusals::resolve(&setup.domains[0].shares[0], &setup);
    assert_eq!(told.reaction("RSR/RCR"), Some(Reaction::Discard));
    assert_eq!(told.reaction("9346CR"), Some(Reaction::MachineCheck));
    assert_eq!(told.reaction("CMD"), Some(Reaction::Interrupt));
    assert!(told.machine_check());
    let told = refusals::resolve(&setup.domains[1].shares[0], &setup);
    assert!(told.reaction("CMD").is_none() && !told.machine_check());
}

#[test]
fn kernels_must_exist() {
    refused("kernel = \"debian-6.1\"", "kernel = \"./vmlinuz\"", "12: there is no kernel file ./vmlinuz");
    refused(
        "kernel = \"debian-6.1\"",
        "kernel = \"debian-5\"",
        "'debian-5' is neither the name of a kernel that Sluice builds",
    );
    refused("kernel = \"debian-6.1\"\n", "\n", "11: [domain.zoe] lacks 'kernel'");
}

#[test]
fn names_are_plain() {
    refused("[domain.zoe]", "[domain.Zoe]", "'Zoe' cannot be the name of a domain");
    refused("[domain.alice]", "[domain.zoe]", "not TOML");
}

#[test]
fn pci_functions_are_written_in_two_ways() {
    let setup = try_load(&GOOD.replace("10ec:8029", "00:04.0")).unwrap();
    assert_eq!(*setup.devices[0].select.get_ref(), Select::Address { bus: 0, device: 4, function: 0 });
    refused("10ec:8029", "10ec-8029", "'10ec-8029' is no PCI function");
    refused("10ec:8029", "00:20.0", "is no PCI function");
    try_load(&GOOD.replace("pci = \"10ec:8029\"\n", "")).expect("known from the QEMU device");
}

#[test]
fn sizes_are_exact() {
    assert_eq!(values::parse_size("2GiB"), Some(2 << 30));
    assert_eq!(values::parse_size("512 M"), Some(512 << 20));
    assert_eq!(values::parse_size("12"), None);
    assert_eq!(values::parse_size("MiB"), None);
    assert_eq!(values::parse_size("99999999999999GiB"), None);
    assert_eq!(human_size(256 << 20), "256 MiB");
}

/// A file with one device in one guest.
fn one_device(machine: &str, pci: &str, entry: &str) -> String {
    format!(
        "[machine]\n{machine}\n[device.nic0]\npci = \"{pci}\"\nqemu = \"e1000\"\n[domain.a]\n\
         kernel = \"debian-6.1\"\nmemory = \"64MiB\"\ndevices = [{{ use = \"nic0\", {entry} }}]\n"
    )
}

fn messages(text: &str) -> Vec<String> {
    match try_load(text) {
        Ok(_) => Vec::new(),
        Err(ConfigError::Wrong(found)) => found.list.iter().map(|one| one.message.clone()).collect(),
        Err(other) => panic!("{other}"),
    }
}

const PLAIN: &str = "mode = \"passthrough\"";
const KNOWING: &str = "mode = \"passthrough\", dma = \"unprotected\"";
const FINE: &str = "mode = \"passthrough\", dma = \"fine\"";
const FORGING: &str = "mode = \"passthrough\", interrupts = \"unprotected\"";
const VPIO: &str = "mode = \"vpio\", mac = \"52:54:00:00:00:0a\"";
const E1000: &str = "8086:100e";
const NE2000: &str = "10ec:8029";

#[test]
fn a_device_that_reaches_memory_is_given_away_only_behind_an_iommu_or_knowingly() {
    let none = "iommu = \"none\"";
    let refused = messages(&one_device(none, E1000, PLAIN));
    assert!(refused.len() == 1 && refused[0].contains("DMA"), "{refused:?}");
    assert!(messages(&one_device(none, E1000, KNOWING)).is_empty());
    assert!(messages(&one_device(none, NE2000, PLAIN)).is_empty(), "an NE2000 has no DMA");
    assert!(
        messages(&one_device(none, "00:04.0", PLAIN)).is_empty(),
        "only the hypervisor sees what is there"
    );
    let vpio = format!("{VPIO}, dma = \"unprotected\", interrupts = \"unprotected\"");
    let refused = messages(&one_device("", NE2000, &vpio));
    assert!(
        refused.len() == 2 && refused.iter().all(|one| one.contains("not passed through")),
        "{refused:?}"
    );
}

#[test]
fn forged_interrupts_are_accepted_knowingly() {
    let off = "iommu = \"intel\"\ninterrupt_remapping = false";
    let refused = messages(&one_device(off, E1000, PLAIN));
    assert!(
        refused.len() == 1 && refused[0].contains("line 3 switches interrupt remapping off"),
        "{refused:?}"
    );
    assert!(messages(&one_device(off, E1000, FORGING)).is_empty());
    assert!(messages(&one_device(off, E1000, KNOWING)).is_empty(), "more is accepted already");
    assert!(messages(&one_device("iommu = \"none\"", E1000, FINE))[0].contains("the machine has no IOMMU"));
    assert!(messages(&one_device("", NE2000, FINE))[0].contains("there is nothing to issue to it"));
    let odd = FINE.replace("fine", "coarse");
    assert!(messages(&one_device("", E1000, &odd))[0].contains("'coarse' is no setting of 'dma'"));
    let emulated = format!(
        "mode = \"emulated\", mac = \"52:54:00:00:00:0a\"{}",
        FINE.replace("mode = \"passthrough\"", "")
    );
    assert!(messages(&one_device("", E1000, &emulated))[0].contains("its dma is the hypervisor's matter"));
    assert!(messages(&one_device(off, NE2000, PLAIN)).is_empty());
    assert!(
        messages(&one_device("", E1000, "mode = \"passthrough\", interrupts = \"open\""))[0]
            .contains("'open' is no setting of 'interrupts'")
    );
}

#[test]
fn an_iommu_is_there_where_one_is_needed() {
    let iommu = |machine: &str, pci: &str, entry: &str| {
        try_load(&one_device(machine, pci, entry)).expect("good").iommu()
    };
    assert_eq!(iommu("", E1000, PLAIN), Iommu::Amd);
    assert_eq!(iommu("", "00:04.0", PLAIN), Iommu::Amd, "nobody knows yet what it is");
    assert_eq!(iommu("", E1000, KNOWING), Iommu::None);
    assert_eq!(iommu("", NE2000, PLAIN), Iommu::None);
    assert_eq!(iommu("", NE2000, VPIO), Iommu::None);
    assert_eq!(iommu("iommu = \"intel\"", NE2000, VPIO), Iommu::Intel);
    assert_eq!(iommu("iommu = \"amd\"", E1000, KNOWING), Iommu::Amd);
    assert!(messages(&one_device("iommu = \"arm\"", E1000, PLAIN))[0].contains("'arm' is no IOMMU"));
    assert!(messages(&one_device("interrupt_remapping = 1", E1000, PLAIN))[0].contains("true or false"));
    assert!(
        messages(&one_device("at_end = \"of\"", E1000, PLAIN))[0]
            .contains("'of' is nothing a machine can do")
    );
    assert!(messages(&one_device("", "00:14.0", PLAIN))[0].contains("slot 14"));
    assert!(messages(&one_device("iommu = \"intel\"", "00:14.0", PLAIN)).is_empty());
}

#[test]
fn emulated_cards_need_a_driver_and_may_differ_from_the_physical() {
    let emulated = |pci: &str, entry: &str| {
        one_device("", pci, &format!("mode = \"emulated\", mac = \"52:54:00:00:00:0a\"{entry}"))
    };
    for pci in [NE2000, E1000, "10ec:8139", "00:04.0"] {
        assert_eq!(messages(&emulated(pci, "")), Vec::<String>::new());
        assert_eq!(messages(&emulated(pci, ", model = \"rtl8139c\"")), Vec::<String>::new());
    }
    assert_eq!(try_load(&emulated(E1000, "")).expect("good").iommu(), Iommu::None, "no guest has the device");
    assert!(messages(&emulated("8086:10d3", ""))[0].contains("no driver for 'nic0'"));
    assert!(messages(&emulated(NE2000, ", model = \"3c509\""))[0].contains("'3c509' is no model"));
    let vpio = format!("{VPIO}, model = \"e1000\"");
    assert!(messages(&one_device("", NE2000, &vpio))[0].contains("'nic0' is not emulated"));
    assert_eq!(
        messages(&one_device("", "10ec:8139", &format!("{VPIO}, model = \"rtl8139c\""))),
        Vec::<String>::new()
    );
    assert!(messages(&one_device("", "8086:10d3", VPIO))[0].contains("no device state model knows 'nic0'"));
    assert!(messages(&one_device("", NE2000, "mode = \"emulated\""))[0].contains("needs an address"));
}

#[test]
fn the_hypervisor_is_told_the_options_of_the_mode() {
    let told = |machine: &str, pci: &str, entry: &str| {
        let setup = try_load(&one_device(machine, pci, entry)).expect("good");
        setup.domains[0].shares[0].attachment(&setup).expect("checked")
    };
    let passthrough =
        |dma, interrupts| Attachment::Passthrough(Passthrough { dma, interrupts_unprotected: interrupts });
    assert_eq!(told("", E1000, PLAIN), passthrough(Dma::Guest, false));
    assert_eq!(told("", E1000, FINE), passthrough(Dma::Fine, false));
    assert_eq!(told("", E1000, KNOWING), passthrough(Dma::Unprotected, false));
    assert_eq!(told("", E1000, FORGING), passthrough(Dma::Guest, true));
    let mac = [0x52, 0x54, 0, 0, 0, 0x0a];
    let plain = Vpio {
        mac,
        model: None,
        weight: 1,
        max_wait_ms: None,
        refusals: Default::default(),
        registers_unprotected: false,
    };
    assert_eq!(told("", NE2000, VPIO), Attachment::Vpio(plain.clone()));
    let options = "weight = 3, max_wait_ms = 5, on_refusal = \"machine-check\"";
    let refusals =
        sluice_abi::config::Refusals { others: Some(Reaction::MachineCheck), registers: Vec::new() };
    let turns = Attachment::Vpio(Vpio { weight: 3, max_wait_ms: Some(5), refusals, ..plain.clone() });
    assert_eq!(told("", NE2000, &format!("{VPIO}, {options}")), turns);
    assert!(turns.machine_check() && !Attachment::Vpio(plain.clone()).machine_check());
    let model = Some(NicModel::Rtl8139c);
    let open = Attachment::Vpio(Vpio { model, registers_unprotected: true, ..plain });
    let options = "model = \"rtl8139c\", registers = \"unprotected\"";
    assert_eq!(told("", "10ec:8139", &format!("{VPIO}, {options}")), open);
    let emulated = VPIO.replace("vpio", "emulated");
    assert_eq!(told("", E1000, &emulated), Attachment::Emulated(Emulated { mac, model: None }));
    let other = format!("{emulated}, model = \"rtl8139c\"");
    assert_eq!(told("", E1000, &other), Attachment::Emulated(Emulated { mac, model }));
}

const SERVERS: &str = r#"
[device.nic0]
qemu = "e1000"
net = "user"

[device.nvme0]
qemu = "nvme"
disks = ["web", "files"]

[domain.driver]
kernel = "debian-6.1"
initrd = "driver-domain"
cmdline = "quiet sluice.job=serve:bridge=br0,uplink=eth0,network=10.0.2.129/25,pool=10.0.2.192-10.0.2.254"
memory = "64MiB"
devices = [{ use = "nic0", mode = "passthrough" }, { use = "nvme0", mode = "passthrough" }]

[domain.web]
kernel = { disk = "web" }
memory = "64MiB"
forward = ["2222:22"]
grants = "all"
devices = [
    { mode = "virtio", type = "blk", by = "driver", source = "/dev/nvme0n1" },
    { mode = "virtio", type = "net", by = "driver", source = "br0", mac = "52:54:00:00:00:0a", address = "10.0.2.130" },
]
"#;

/// The complaints about SERVERS with one text replaced.
#[track_caller]
fn servers_refused(from: &str, to: &str, expect: &str) {
    assert!(SERVERS.contains(from), "{from:?} is not in the sample");
    let error = try_load(&SERVERS.replacen(from, to, 1)).expect_err("it should be refused").to_string();
    assert!(error.contains(expect), "expected {expect:?} in {error}");
}

#[test]
fn a_guest_boots_from_its_disk_and_is_reached_at_its_address() {
    let setup = try_load(SERVERS).unwrap();
    let web = &setup.domains[1];
    assert_eq!(*web.kernel.get_ref(), Image::Disk(Disk::Named("web".parse().unwrap())));
    let route = setup.route_to(web).unwrap();
    assert_eq!(route.device.name.get_ref(), "nic0");
    assert_eq!(route.address, Some("10.0.2.130".parse().unwrap()));
    assert_eq!(virtio::leases(&setup, &setup.domains[0]), " sluice.lease=52:54:00:00:00:0a,10.0.2.130,web");
    assert_eq!(virtio::leases(&setup, web), "");
}

#[test]
fn disks_that_cannot_be_are_refused() {
    servers_refused(
        "{ disk = \"web\" }",
        "{ disk = \"wep\" }",
        "no device has the disk wep, from which 'web' would boot",
    );
    servers_refused("{ disk = \"web\" }", "{ disk = \"wep\" }", "did you mean 'web'?");
    servers_refused("{ disk = \"web\" }", "{ disc = \"web\" }", "'kernel' lacks 'disk'");
    servers_refused(
        "{ disk = \"web\" }",
        "{ disk = \"web\", file = \"x\" }",
        "unknown key 'file' in 'kernel'",
    );
    servers_refused("{ disk = \"web\" }", "{ disk = 1 }", "a disk must be a string, not a whole number");
    servers_refused("\"files\"]", "\"web\"]", "the disk web is on 'nvme0' already");
    servers_refused("\"files\"]", "\"files.raw\"]", "there is no file files.raw");
    servers_refused("\"files\"]", "\"../../etc\"]", "there is no file ../../etc");
    servers_refused("\"nvme\"", "\"edu\"", "'nvme0' is no controller of disks that `run` emulates");
    let ramdisk = "{ disk = \"web\" }\ninitrd = \"busybox\"";
    servers_refused("{ disk = \"web\" }", ramdisk, "'busybox' needs modules of a kernel by name");
}

#[test]
fn a_disk_can_be_behind_a_socket() {
    assert!(try_load(&SERVERS.replacen("/dev/nvme0n1", "vhost-user:/run/disk.sock", 1)).is_ok());
    for socket in ["", "run/disk.sock", "/run/"] {
        let message = format!("'{socket}' is no path of a vhost-user back end's socket");
        servers_refused("/dev/nvme0n1", &format!("vhost-user:{socket}"), &message);
    }
    let net = "source = \"vhost-user:/run/net.sock\"";
    servers_refused(
        "source = \"br0\"",
        net,
        "only disks and file systems can be served by a vhost-user back end",
    );
}

#[test]
fn addresses_that_cannot_be_are_refused() {
    for address in
        ["10.0.2", "10.0.2.256", "224.0.0.1", "0.0.0.0", "255.255.255.255", "127.0.0.1", "::1", "web"]
    {
        servers_refused("10.0.2.130", address, &format!("'{address}' is no address of a guest"));
    }
    let disk = "source = \"/dev/nvme0n1\", address = \"10.0.2.131\"";
    servers_refused("source = \"/dev/nvme0n1\"", disk, "a disk has no address on a network");
    let second = "{ mode = \"virtio\", type = \"net\", by = \"driver\", source = \"br0\", mac = \"52:54:00:00:00:0b\", address = \"10.0.2.130\" },\n]";
    let at = SERVERS.rfind(']').unwrap();
    let error = try_load(&format!("{}{second}", &SERVERS[..at])).unwrap_err().to_string();
    assert!(error.contains("10.0.2.130 is the address of 'web' already"), "{error}");
    servers_refused(", address = \"10.0.2.130\"", "", "no port can be forwarded to 'web'");
    for address in ["10.0.2.127", "10.0.2.128", "10.0.2.255", "10.0.3.130", "192.168.0.1"] {
        let expect = format!("{address} is no address of the network that 'driver' gives to guests");
        servers_refused("10.0.2.130", address, &expect);
        servers_refused("10.0.2.130", address, "use one of 10.0.2.129 to 10.0.2.254");
    }
    servers_refused("10.0.2.130", "10.0.2.129", "10.0.2.129 is the address of 'driver' already");
    servers_refused(
        "network=10.0.2.129/25",
        "network=10.0.2.129",
        "'10.0.2.129' is no network that 'driver' could give to guests",
    );
    servers_refused("network=10.0.2.129/25", "net=10.0.2.129/25", "'driver' gives no addresses to guests");
    let other_job =
        SERVERS.replacen("sluice.job=serve", "sluice.job=other", 1).replacen("10.0.2.130", "10.9.0.1", 1);
    assert!(try_load(&other_job).is_ok(), "nothing is known of its network");
}

#[test]
fn both_sides_name_each_other_as_peers() {
    let with = |zoe: &str, alice: &str| {
        let text = GOOD.replace("vcpus = 2", &format!("vcpus = 2\n{zoe}"));
        try_load(&text.replace("paused = true", &format!("paused = true\n{alice}")))
    };
    let setup = with("peers = [\"alice\"]", "peers = [\"zoe\"]").unwrap();
    assert_eq!(setup.domains.iter().filter(|domain| domain.peers.len() == 1).count(), 2);
    let refused = |zoe: &str, alice: &str, expect: &str| {
        let error = with(zoe, alice).expect_err("it should be refused").to_string();
        assert!(error.contains(expect), "expected {expect:?} in {error}");
    };
    refused("peers = [\"alice\"]", "", "'alice' does not name 'zoe' as its peer");
    refused("peers = [\"zoe\"]", "", "a domain is not its own peer");
    refused("peers = [\"alica\"]", "", "did you mean 'alice'?");
    refused("peers = [1]", "", "a peer is the name of a domain");
    let many = format!("peers = [{}]", "\"alice\", ".repeat(17));
    refused(&many, "peers = [\"zoe\"]", "'zoe' has more than 16 peers");
    refused("peers = [\"alice\"]", "kind = \"paravirtual\"\npeers = [\"zoe\"]", "such domains have no peers");
}
