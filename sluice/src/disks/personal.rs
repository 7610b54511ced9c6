//! What makes a fresh image somebody's: its name, its host key, and who may log in. It is put in by debugfs of e2fsprogs, which needs no
//! privileges.
//!
//! Only images that the user brings or that were just made come here, none that a guest has written.

use super::extent::Extent;
use super::keys;
use crate::name::Name;
use crate::workspace::run;
use anyhow::{Context, Result, bail};
use ext4_view::Ext4;
use std::path::Path;
use std::process::Command;

/// A file of the guest.
struct Piece {
    path: &'static str,
    mode: u16,
    content: String,
}

/// Gives the image a name and keys; returns the line for `known_hosts`. `scratch` is an empty folder of this process's.
pub fn personalize(image: &Path, name: &Name, scratch: &Path) -> Result<String> {
    let host_key = scratch.join("host-key");
    keys::make(&host_key, &format!("root@{name}"))?;
    let public = keys::public(&host_key)?;
    let private = std::fs::read_to_string(&host_key).context("could not read the host key")?;
    let pieces = pieces(name, &private, &public, &keys::authorized()?);
    let place = root_file_system(image)?;
    write(image, place, &pieces, scratch)?;
    // Whatever the guest is called that has the disk.
    Ok(format!("* {public}"))
}

/// What is put in. The last two are for stock images with cloud-init, which would make other keys and keep root out otherwise
/// (its data source "NoCloud").
fn pieces(name: &Name, private: &str, public: &str, authorized: &str) -> Vec<Piece> {
    let listed: String = authorized.lines().map(|key| format!("  - {}\n", serde_json::json!(key))).collect();
    let user_data = format!(
        "#cloud-config\nhostname: {name}\nssh_deletekeys: false\ndisable_root: false\nssh_authorized_keys:\n{listed}"
    );
    let piece = |path, mode, content| Piece { path, mode, content };
    vec![
        piece("/etc/hostname", 0o644, format!("{name}\n")),
        piece("/etc/hosts", 0o644, format!("127.0.0.1 localhost\n127.0.1.1 {name}\n::1 localhost\n")),
        piece("/etc/ssh/ssh_host_ed25519_key", 0o600, private.to_owned()),
        piece("/etc/ssh/ssh_host_ed25519_key.pub", 0o644, public.to_owned()),
        piece("/root/.ssh/authorized_keys", 0o600, authorized.to_owned()),
        piece("/var/lib/cloud/seed/nocloud/user-data", 0o600, user_data),
        piece("/var/lib/cloud/seed/nocloud/meta-data", 0o600, format!("instance-id: {name}\n")),
    ]
}

/// Where in the image the root file system begins: it has `/etc`.
fn root_file_system(image: &Path) -> Result<u64> {
    for extent in Extent::find(image)? {
        let start = extent.start;
        if Ext4::load(Box::new(extent)).is_ok_and(|system| system.exists("/etc").unwrap_or(false)) {
            return Ok(start);
        }
    }
    bail!("{} has no ext4 file system with a folder /etc", image.display())
}

fn write(image: &Path, start: u64, pieces: &[Piece], scratch: &Path) -> Result<()> {
    let mut commands = String::new();
    for (index, piece) in pieces.iter().enumerate() {
        std::fs::write(scratch.join(format!("piece{index}")), &piece.content)
            .context("could not write to the scratch folder")?;
        let path = piece.path;
        let folders = path.match_indices('/').skip(1).map(|(at, _)| &path[..at]);
        for folder in folders {
            // Where there is one already, this says so and does nothing.
            commands += &format!("mkdir {folder}\n");
        }
        commands += &format!("rm {path}\nwrite piece{index} {path}\n");
        commands += &format!("sif {path} mode 010{:04o}\nsif {path} uid 0\nsif {path} gid 0\n", piece.mode);
    }
    commands += "sif /root/.ssh mode 040700\n";
    std::fs::write(scratch.join("commands"), commands).context("could not write to the scratch folder")?;
    let image_at = format!("{}?offset={start}", image.display());
    run(Command::new("debugfs").args(["-w", "-f", "commands"]).arg(image_at).current_dir(scratch))
        .context("could not write into the image")?;
    // Its exit status says nothing of single commands.
    let place = Extent::find(image)?.into_iter().find(|extent| extent.start == start);
    let system = Ext4::load(Box::new(place.context("the file system is gone")?)).context("it is damaged")?;
    for piece in pieces {
        if system.read(piece.path).ok().as_deref() != Some(piece.content.as_bytes()) {
            bail!("could not write {} into the image; is there room?", piece.path);
        }
    }
    Ok(())
}
