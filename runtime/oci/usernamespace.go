package oci

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/bundle"
	"sandbox.internal/runtime/oci/thread"
	"sandbox.internal/runtime/oci/users"
)

// In a user namespace, root in a container is no user of the host: what leads out of the container, such as an error of the
// kernel, leads to a process that may do nothing. The container's files are owned by 0 and so on upwards on the disk, whichever ids it has,
// because it gets them through mounts that translate owners (ID-mapped mounts, see makeSources). So images are unpacked once, volumes can be
// shared, and what reads a container's disk finds the owners that the container sees.

// UserNamespaces says which containers get a user namespace of their own. gVisor's never do: it has its own way to the same end. Nor do those
// with [engine.ContainerSpec].HostUsers.
type UserNamespaces string

const (
	// UserNamespacesAuto gives one to every container that can have it, if this host, its kernel and the OCI runtime have proved when the Engine
	// opened that they can. Which have none, and why, is in the log.
	UserNamespacesAuto UserNamespaces = "auto"
	// UserNamespacesOn refuses to open, and to start a container, without.
	UserNamespacesOn UserNamespaces = "on"
	// UserNamespacesOff gives none.
	UserNamespacesOff UserNamespaces = "off"
)

// HostUsers says why the users of containers are the host's, when those of the default runtime are; "" when they are not.
func (e *Engine) HostUsers() string {
	switch {
	case e.users == nil:
		return e.noUsers
	case !e.defaultRuntime.MapsUsers:
		return "" // it has its own way
	}
	return e.hostUsers[e.defaultRuntime.Path]
}

// fixedIDs is the error of a source whose files cannot be shown as those of a user namespace.
type fixedIDs struct {
	path string
	err  error
}

func (f *fixedIDs) Error() string {
	kind := "its file system"
	var info unix.Statfs_t
	if err := unix.Statfs(f.path, &info); err == nil {
		kind = fmt.Sprintf("its file system (%#x in statfs)", info.Type)
	}
	return fmt.Sprintf("%s: %s, or how it is mounted, cannot show other owners in a user namespace: %v", f.path, kind, f.err)
}

func (f *fixedIDs) Unwrap() error { return f.err }

// takeUsers takes ids for a container that gets a user namespace.
func (s *startOperation) takeUsers() error {
	e := s.engine
	switch {
	case s.trial:
	case e.users == nil, s.spec.HostUsers, !s.runtime.MapsUsers, e.hostUsers[s.runtime.Path] != "":
		return nil
	}
	ids, err := bundle.UserIDs(s.image.Layers, s.image.Config.User)
	if err != nil {
		return err
	}
	beyond, few := users.Beyond(ids)
	if !few {
		return fmt.Errorf("%w: user: %q of the image has too many groups for a user namespace", engine.ErrInvalid, s.image.Config.User)
	}
	if s.users, err = e.users.TakeWith(beyond); errors.Is(err, users.ErrNone) {
		return fmt.Errorf("%w: %w", engine.ErrUnavailable, err)
	}
	s.beyond = beyond
	return err
}

// makeUserNamespace makes the container's, which belongs to its own root. One that the runtime makes belongs to root of the host: what the kernel
// counts for each user (inotify instances and watches, queued signals, message queues) it counts for the owner as well, and so the containers would
// share one bound with one another and with the host.
func (s *startOperation) makeUserNamespace() error {
	first := s.users.First
	if first == 0 || s.runtime.LimitsFromOutside && !mayExceedLimits() {
		return nil
	}
	made, err := s.engine.users.TakeContainer(first, s.beyond)
	if errors.Is(err, engine.ErrUnavailable) {
		return err
	}
	if err != nil { // the kernel may let root alone make one
		s.engine.log.Warn().Err(err).Str("container", s.container.name).
			Msg("the container's user namespace belongs to root of this host, with which it shares what the kernel counts for each user")
		return nil
	}
	s.userNS = made
	return nil
}

// mayExceedLimits reports whether this process has CAP_SYS_RESOURCE. If not, it runs in a container itself.
func mayExceedLimits() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData // the capabilities from 0 and from 32 on
	err := unix.Capget(&header, &data[0])
	return err == nil && data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// dropUserNamespace makes the rest of the start one without a user namespace, unless the container must have one.
func (s *startOperation) dropUserNamespace(reason error) error {
	e, c, first := s.engine, s.container, s.users.First
	if s.trial || e.options.UserNamespaces == UserNamespacesOn {
		return fmt.Errorf("%w: the container cannot have a user namespace: %s", engine.ErrInvalid, reason.Error())
	}
	e.log.Warn().Str("container", c.name).Str("reason", reason.Error()).Str(userNamespacesField, "missing").
		Msg("the container has no user namespace: its root is that of the host, without the capabilities")
	e.releaseSources(c.id)
	if err := e.update(c, func(r *record) { r.Run.Users = 0 }); err != nil {
		return err
	}
	s.users, s.beyond = users.Range{}, nil
	e.users.Release(first)
	if err := os.Mkdir(s.root(), folderMode); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

// releaseUsers makes the ids of a container available again, once no record has them.
func (e *Engine) releaseUsers(had *runRecord) {
	if e.users != nil && had != nil && had.Users != 0 {
		e.users.Release(had.Users)
	}
}

// setNetworkParameters sets those of the container's own network, which its root may not, in another user namespace.
func setNetworkParameters(netNS string, all map[string]string) error {
	var names []string
	for name := range all {
		if strings.HasPrefix(name, "net.") {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	var err error
	thread.Run(func() {
		err = enterNetwork(netNS)
		for _, name := range names {
			if err == nil {
				path := filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/")) // the name was checked
				err = os.WriteFile(path, []byte(all[name]), 0)
			}
		}
	})
	if err != nil {
		return fmt.Errorf("%w: kernel parameters: %w", engine.ErrInvalid, err)
	}
	return nil
}
