package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/bundle"
	"sandbox.internal/runtime/oci/internal/containers"
	"sandbox.internal/runtime/oci/internal/layout"
	"sandbox.internal/runtime/oci/internal/sourcemounts"
	"sandbox.internal/runtime/oci/keeper"
	"sandbox.internal/runtime/oci/thread"
	"sandbox.internal/runtime/oci/users"
)

// In a user namespace, root in a container is no user of the host: what leads out of the container,
// such as an error of the kernel, leads to a process that may do nothing. The container's files are
// owned by 0 and so on upwards on the disk, whichever ids it has, because it gets them through
// mounts that translate owners (ID-mapped mounts, see attachSources). So images are unpacked once,
// volumes can be shared, and what reads a container's disk finds the owners that the container
// sees.

// UserNamespaces says which containers get a user namespace of their own. gVisor's never do: it has
// its own way to the same end. Nor do those with [engine.ContainerSpec].HostUsers.
type UserNamespaces string

const (
	// UserNamespacesAuto gives one to every container that can have it, if this host, its kernel
	// and the OCI runtime have passed a test when the Engine opened. The log names the runtimes
	// whose containers have none, and why.
	UserNamespacesAuto UserNamespaces = "auto"
	// UserNamespacesOn refuses to open, and to start a container, without.
	UserNamespacesOn UserNamespaces = "on"
	// UserNamespacesOff gives none.
	UserNamespacesOff UserNamespaces = "off"
)

// userNamespacesField is the field of the log that says what is known about user namespaces:
// available, missing or untried.
const userNamespacesField = "user_namespaces"

// hostRootMessage is logged where containers get no user namespace.
const hostRootMessage = "containers have no user namespaces: their root is that of the host, without the capabilities"

// userNamespaces has the ids for user namespaces of containers, and knows which containers get
// none.
type userNamespaces struct {
	mode    UserNamespaces
	log     zerolog.Logger
	pool    *users.Pool // nil when no container gets a user namespace
	missing string      // why it is nil
	// refused says why the containers of a runtime, by its path, get none. It is not changed once
	// the Engine is open.
	refused map[string]string
}

// openUserNamespaces takes the ids for the service with the data directory, of which containers
// have some. The keeper makes the namespaces.
func openUserNamespaces(mode UserNamespaces, data string, makers users.Makers, all []*containers.Container, log zerolog.Logger) (*userNamespaces, error) {
	u := &userNamespaces{mode: mode, log: log, refused: map[string]string{}}
	if mode == UserNamespacesOff {
		u.missing = "local.user_namespaces is off"
		log.Info().Msg("user namespaces are switched off: root in a container is that of the host, without the capabilities")
		return u, nil
	}
	pool, err := users.Open(layout.Claims, data, makers)
	if err != nil && !temporary(err) && mode == UserNamespacesAuto {
		u.missing = err.Error()
		log.Warn().Err(err).Str(userNamespacesField, "missing").Msg(hostRootMessage)
		return u, nil
	}
	if err != nil {
		return nil, err
	}
	for _, c := range all {
		if run := c.Record().Run; run != nil && run.Users != 0 {
			pool.MarkTaken(run.Users)
		}
	}
	u.pool = pool
	return u, nil
}

// namespaceMakers have a keeper make user namespaces.
func namespaceMakers(k func() *keeper.Client) users.Makers {
	return users.Makers{
		Mounts: func(ids []syscall.SysProcIDMap) (*os.File, error) {
			return k().UserNamespace(ids, 0) // the kernel lets its owner alone map the host's 0
		},
		Container: func(ids []syscall.SysProcIDMap, owner int) (*os.File, error) {
			return k().UserNamespace(ids, owner)
		},
	}
}

// prepare makes some namespaces ahead. The keeper runs.
func (u *userNamespaces) prepare() {
	if u.pool != nil {
		u.pool.Prepare()
	}
}

func (u *userNamespaces) close() {
	if u.pool != nil {
		u.pool.Close()
	}
}

// release makes the ids of a container available again, once no record has them.
func (u *userNamespaces) release(had *containers.Run) {
	if u.pool != nil && had != nil && had.Users != 0 {
		u.pool.Release(had.Users)
	}
}

// hostUsers says why the users of containers of a runtime are the host's; "" when they are not.
func (u *userNamespaces) hostUsers(runtime bundle.Runtime) string {
	switch {
	case u.pool == nil:
		return u.missing
	case !runtime.MapsUsers:
		return "" // it has its own way
	}
	return u.refused[runtime.Path]
}

// checkHost tests each runtime with a container that has a user namespace. The error of a test is a
// [*refusal] if the host, its kernel or the runtime cannot have one.
func (u *userNamespaces) checkHost(ctx context.Context, found map[string]bundle.Runtime, test func(context.Context, bundle.Runtime) error) error {
	if u.pool == nil {
		return nil
	}
	for path, runtime := range found {
		if !runtime.MapsUsers {
			continue
		}
		err := test(ctx, runtime)
		var refused *refusal
		if err != nil && !errors.As(err, &refused) {
			err = test(ctx, runtime)
		}
		switch {
		case err == nil:
			u.log.Info().Str("runtime", path).Str(userNamespacesField, "available").Msg("containers have user namespaces")
		case ctx.Err() == nil && !errors.As(err, &refused):
			// Containers do without only where it is known that they must. If these must, they fail
			// to start.
			u.log.Warn().Err(err).Str("runtime", path).Str(userNamespacesField, "untried").
				Msg("cannot test user namespaces: containers get them untested")
		case u.mode == UserNamespacesOn, ctx.Err() != nil:
			return fmt.Errorf("containers of %s cannot have user namespaces: %w", path, err)
		default:
			u.refused[path] = err.Error()
			u.log.Warn().Err(err).Str("runtime", path).Str(userNamespacesField, "missing").Msg(hostRootMessage)
		}
	}
	return nil
}

// refusal is an error that says that the host cannot have user namespaces. Others, such as a full
// disk or a keeper that is killed, say nothing about that.
type refusal struct{ error }

func (r *refusal) Unwrap() error { return r.error }

// temporary reports whether an error may be gone the next time.
func temporary(err error) bool {
	for _, cause := range []error{
		unix.ENOSPC, unix.EDQUOT, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EAGAIN, unix.EIO,
		engine.ErrUnavailable, context.DeadlineExceeded, context.Canceled,
	} {
		if errors.Is(err, cause) {
			return true
		}
	}
	return false
}

// takeIDs takes ids for a container that gets a user namespace.
func (s *start) takeIDs() error {
	u := s.launcher.users
	switch {
	case s.test:
	case u.pool == nil, s.spec.HostUsers, !s.runtime.MapsUsers, u.refused[s.runtime.Path] != "":
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
	if s.ids, err = u.pool.TakeWith(beyond); errors.Is(err, users.ErrNone) {
		return fmt.Errorf("%w: %w", engine.ErrUnavailable, err)
	}
	s.beyond = beyond
	return err
}

// makeUserNamespace makes the container's, which belongs to its own root. One that the runtime
// makes belongs to root of the host: what the kernel counts for each user (inotify instances and
// watches, queued signals, message queues) it counts for the owner as well, and so the containers
// would share one bound with one another and with the host.
func (s *start) makeUserNamespace() error {
	first := s.ids.First
	if first == 0 || s.runtime.LimitsFromOutside && !mayExceedLimits() {
		return nil
	}
	made, err := s.users.pool.TakeContainer(first, s.beyond)
	if errors.Is(err, engine.ErrUnavailable) {
		return err
	}
	if err != nil { // the kernel may let root alone make one
		s.log.Warn().Err(err).Str("container", s.container.Name).
			Msg("user namespace of container belongs to root of this host, with which it shares what the kernel counts for each user")
		return nil
	}
	s.userNS = made
	return nil
}

// mayExceedLimits reports whether this process has CAP_SYS_RESOURCE. If not, it runs in a container
// itself.
func mayExceedLimits() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData // the capabilities from 0 and from 32 on
	err := unix.Capget(&header, &data[0])
	return err == nil && data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// dropUserNamespace makes the rest of the start one without a user namespace, unless the container
// must have one.
func (s *start) dropUserNamespace(reason error) error {
	c, first := s.container, s.ids.First
	if s.test || s.users.mode == UserNamespacesOn {
		return fmt.Errorf("%w: the container cannot have a user namespace: %s", engine.ErrInvalid, reason.Error())
	}
	s.log.Warn().Str("container", c.Name).Str("reason", reason.Error()).Str(userNamespacesField, "missing").
		Msg("container has no user namespace: its root is that of the host, without the capabilities")
	s.sources.Release(c.ID)
	if err := c.Update(func(r *containers.Record) { r.Run.Users = 0 }); err != nil {
		return err
	}
	s.ids, s.beyond = users.Range{}, nil
	s.users.pool.Release(first)
	if err := os.Mkdir(s.root(), layout.DirectoryMode); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

// setNetworkParameters sets those of the container's own network, which its root may not, in
// another user namespace.
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
		err = sourcemounts.EnterNetwork(netNS)
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
