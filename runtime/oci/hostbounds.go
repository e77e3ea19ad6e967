package oci

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rs/zerolog"
)

// procSys has the kernel parameters of this host.
const procSys = "/proc/sys"

// hostBound is a kernel parameter that bounds something for all containers together, or for all
// whose users are the host's.
type hostBound struct {
	name  string // below procSys
	least int64
	// shared is whether only containers without a user namespace share it.
	shared bool
	lost   string // what one container can use up where it is lower
}

// hostBounds are set so high that memory, which the kernel counts for the container, is used up
// before; terminals are bounded for each container.
var hostBounds = []hostBound{
	{"fs/epoll/max_user_watches", 1 << 40, true, "what root may watch with epoll, without which the service accepts no connection"},
	{"fs/inotify/max_user_instances", 1 << 16, true, "root's instances of inotify"},
	{"fs/inotify/max_user_watches", 1 << 24, true, "what root may watch with inotify"},
	{"fs/file-max", 1 << 40, false, "the open files of this host"},
	{"kernel/pty/max", 1 << 16, false, "the pseudo terminals of this host, together with others"},
}

// raiseHostBounds raises the parameters in the directory procSys that are lower; those that only
// containers without a user namespace share where there can be such containers. A parameter that
// cannot be raised is reported: then containers run all the same.
func raiseHostBounds(procSys string, mode UserNamespaces, log zerolog.Logger) {
	for _, bound := range hostBounds {
		if bound.shared && mode == UserNamespacesOn {
			continue // such a container runs a program of ours
		}
		parameter := strings.ReplaceAll(bound.name, "/", ".")
		raised, err := raise(filepath.Join(procSys, bound.name), bound.least)
		switch {
		case err != nil:
			log.Warn().Err(err).Str("parameter", parameter).Msg("cannot raise a kernel parameter: one sandbox can use up " + bound.lost)
		case raised:
			log.Info().Str("parameter", parameter).Int64("value", bound.least).Msg("raised a kernel parameter: sandboxes share what it bounds")
		}
	}
}

// raise sets a kernel parameter to the value, unless it is as high already.
func raise(path string, least int64) (raised bool, err error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	if now, err := strconv.ParseInt(strings.TrimSpace(string(content)), 10, 64); err == nil && now >= least {
		return false, nil
	}
	return true, os.WriteFile(path, strconv.AppendInt(nil, least, 10), 0)
}
