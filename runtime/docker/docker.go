// Package docker is an [engine.Engine] on the API of a Docker Engine, 20.10 (API 1.41) or newer.
//
// It is the only package that imports Docker's client, so that a change of client touches nothing
// else.
package docker

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/system"
	"github.com/docker/docker/client"
	"github.com/rs/zerolog"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/engine/fair"
	"sandbox.internal/runtime/engine/pull"
	"sandbox.internal/runtime/engine/registries"
	"sandbox.internal/runtime/internal/limits"
)

// defaultAPITimeout is what the lifecycle document gives as the default of docker.api_timeout.
const defaultAPITimeout = 180 * time.Second

// pullsAtOnce bounds the pulls that the engine is asked for at once; half of them are for callers
// that have none.
const pullsAtOnce = 8

// Options say which engine to use and how.
type Options struct {
	// Host is the engine's address: unix:///path, tcp://host:port. Empty means the default socket,
	// unix:///var/run/docker.sock. DOCKER_CERT_PATH and DOCKER_TLS_VERIFY are honoured for tcp, as
	// by Docker's own tools.
	Host string
	// APITimeout bounds every request except pulls and Watch, which last as long as they last. Zero
	// means 180 s.
	APITimeout time.Duration
	// InternalRegistries are the registries with internal addresses that images of every caller may
	// come from; a caller that is no guest may name others, too.
	InternalRegistries []string
	// Bounded are labels: containers that have them are ended, as if for their memory, when their
	// netlink sockets hold too much memory of the host, where this process sees those of the
	// engine's host. Empty: none is.
	Bounded map[string]string
	// ShareProcessors lets every container run on all processors, whatever its limit is.
	ShareProcessors bool
	Logger          zerolog.Logger
}

// Engine talks to one Docker Engine. Use [New].
type Engine struct {
	api     *client.Client
	timeout time.Duration
	log     zerolog.Logger
	pulls   *pull.Group

	registries registries.Rules
	// pullTurns are those of callers: the engine itself downloads three layers at once, those of
	// the first pull first.
	pullTurns *fair.Queue

	negotiated  atomic.Bool
	negotiation chan struct{} // holds one token: see negotiate

	// connected is what the default network permits, once it was asked: nothing needs it again.
	connected atomic.Pointer[bool]
	// seccomp is the profile of containers whose spec names none, once it was asked what the engine
	// has: "" for the engine's.
	seccomp atomic.Pointer[string]

	// What containers are shown of their limits: see shown.go and processors.go.
	labels          map[string]string // of this service's containers
	shareProcessors bool
	processors      *processors
	hostFiles       *limits.Files
	machine         atomic.Pointer[shownMachine]
	shownAt         atomic.Pointer[string] // the directory of the files, once it is known
	shownOff        atomic.Int64           // until when containers get no files, in nanoseconds of Unix
	shownFull       atomic.Bool            // the volume of the files was found to be full

	// volumeTurn holds one token: volumes are filled one at a time, which is rare and quick.
	volumeTurn chan struct{}
	filledMu   sync.Mutex
	filled     map[string]filledVolume

	plainMu sync.Mutex
	plain   map[plainPath]bool

	// What keeps snapshots apart from other calls, and their freezes from watchers.
	containerd atomic.Bool // the engine has its images in containerd
	locks      containerLocks
	unseen     unseen
	made       made
	takingMu   sync.Mutex
	taking     map[string]*taking

	hoardedMu sync.Mutex
	hoarded   map[string]time.Time // when it was ended for what its netlink sockets held, by container

	closing    context.Context    // of what goes on in the background; it ends with Close
	stop       context.CancelFunc // ends it
	closeMu    sync.Mutex         // nothing begins in the background once closing has ended
	background sync.WaitGroup
}

var _ engine.Engine = (*Engine)(nil)

// New prepares an Engine. It does not connect: an engine that is down now may be up later; ask Info
// to find out.
func New(opts Options) (*Engine, error) {
	host := opts.Host
	if host == "" {
		host = client.DefaultDockerHost
	}
	parsed, err := url.Parse(host)
	if err != nil {
		return nil, fmt.Errorf("docker host %q: %w", host, err)
	}
	switch parsed.Scheme {
	case "unix", "tcp", "http", "https":
	default:
		return nil, fmt.Errorf("docker host %q: the scheme must be unix, tcp, http or https", host)
	}
	// Environment comes first: WithHost then adapts the transport that the certificates configured.
	api, err := client.NewClientWithOpts(client.WithTLSClientConfigFromEnv(), client.WithHost(host))
	if err != nil {
		return nil, fmt.Errorf("docker host %q: %w", host, err)
	}
	timeout := opts.APITimeout
	if timeout <= 0 {
		timeout = defaultAPITimeout
	}
	ctx, stop := context.WithCancel(context.Background())
	e := &Engine{
		closing:     ctx,
		stop:        stop,
		hoarded:     map[string]time.Time{},
		plain:       map[plainPath]bool{},
		api:         api,
		timeout:     timeout,
		log:         opts.Logger,
		pulls:       pull.NewGroup(),
		pullTurns:   fair.New(pullsAtOnce, pullsAtOnce/2),
		registries:  registries.Rules{Listed: opts.InternalRegistries},
		negotiation: make(chan struct{}, 1),
		volumeTurn:  make(chan struct{}, 1),
		filled:      map[string]filledVolume{},
		locks:       containerLocks{of: map[string]*containerLock{}},
		unseen:      unseen{watchers: map[*unseenBy]bool{}, frozen: map[string]bool{}},
		made:        made{other: map[string]string{}},
		taking:      map[string]*taking{},

		labels: opts.Bounded, shareProcessors: opts.ShareProcessors, processors: newProcessors(), hostFiles: limits.NewFiles("/proc"),
	}
	if len(opts.Bounded) > 0 {
		e.background.Go(func() { e.boundNetlink(ctx, opts.Bounded) })
	}
	return e, nil
}

// Info implements [engine.Engine].
func (e *Engine) Info(ctx context.Context) (engine.Info, error) {
	var info system.Info
	err := e.call(ctx, "ask the engine for its info", forEngine,
		func(ctx context.Context) (err error) {
			info, err = e.api.Info(ctx)
			return err
		})
	if err != nil {
		return engine.Info{}, err
	}
	if _, err := e.chooseSeccomp(info.SecurityOptions); err != nil {
		return engine.Info{}, err
	}
	e.learnMachine(info)
	e.learnStore(info)
	connected, err := e.askConnected(ctx)
	if err != nil {
		return engine.Info{}, err
	}
	cgroup := info.CgroupVersion
	if cgroup == "" {
		cgroup = "1" // engines older than API 1.41 support no other and do not report it
	}
	return engine.Info{
		Name:          "docker",
		Version:       info.ServerVersion,
		CgroupVersion: cgroup,
		CPUs:          info.NCPU,
		MemoryBytes:   info.MemTotal,
		AppArmor:      hasSecurityOption(info.SecurityOptions, "apparmor"),
		Seccomp:       hasSecurityOption(info.SecurityOptions, "seccomp"),
		Connected:     connected,
		Elsewhere:     !e.machine.Load().here,
		OwnPaths:      ownPaths(e.api.DaemonHost(), info.DockerRootDir),
	}, nil
}

// askConnected reports whether containers on the engine's default network reach one another. An
// engine without that network has none on it. What stands before an engine may refuse the question:
// then it is not known, and an engine that answers is none that is down.
func (e *Engine) askConnected(ctx context.Context) (bool, error) {
	if known := e.connected.Load(); known != nil {
		return *known, nil
	}
	var found network.Inspect
	err := e.call(ctx, "ask the engine for its default network", forContainer, func(ctx context.Context) (err error) {
		found, err = e.api.NetworkInspect(ctx, defaultNetwork, network.InspectOptions{})
		return err
	})
	switch {
	case err == nil || errors.Is(err, engine.ErrNotFound):
	case errors.Is(err, engine.ErrUnavailable) || ctx.Err() != nil:
		return false, err
	default:
		e.log.Warn().Err(err).Msg("cannot determine whether sandboxes can connect to one another's ports")
	}
	connected := err == nil && found.Options["com.docker.network.bridge.enable_icc"] != "false"
	e.connected.Store(&connected)
	return connected, nil
}

// ownPaths are the sockets and directories of the engine and of what it is made of, as they lie by
// default, and where this engine has them. Other engines of the same host count as well: access to
// one is access to the host.
func ownPaths(daemonHost, dataRoot string) []string {
	paths := engine.HostPaths()
	if parsed, err := url.Parse(daemonHost); err == nil && parsed.Scheme == "unix" {
		paths = append(paths, filepath.Clean(parsed.Path))
	}
	if filepath.IsAbs(dataRoot) {
		paths = append(paths, filepath.Clean(dataRoot))
	}
	return paths
}

// hasSecurityOption looks for a kind in the engine's list, whose entries look like
// "name=seccomp,profile=default", and without the name before API 1.25. An engine silently ignores
// profiles of a kind that it does not list.
func hasSecurityOption(list []string, kind string) bool {
	return slices.ContainsFunc(list, func(option string) bool {
		name, _, _ := strings.Cut(option, ",")
		return strings.TrimPrefix(name, "name=") == kind
	})
}

// Close implements [engine.Engine]. Pulls that are under way are cancelled.
func (e *Engine) Close() error {
	e.closeMu.Lock()
	e.stop()
	e.closeMu.Unlock()
	e.background.Wait()
	e.pulls.Close()
	return e.api.Close()
}

// inBackground calls f in a goroutine that Close waits for; f ends when e.closing does. It reports
// false, and does not call f, once the Engine was closed.
func (e *Engine) inBackground(f func()) bool {
	e.closeMu.Lock()
	defer e.closeMu.Unlock()
	if e.closing.Err() != nil {
		return false
	}
	e.background.Go(f)
	return true
}

// call makes one request within the API timeout and explains its error.
func (e *Engine) call(ctx context.Context, op string, m meaning,
	request func(context.Context) error) error {
	return e.callWithin(ctx, e.timeout, op, m, request)
}

func (e *Engine) callWithin(ctx context.Context, limit time.Duration, op string, m meaning,
	request func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := e.negotiate(limited)
	if err != nil {
		m = forEngine
	} else {
		err = request(limited)
	}
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("%s: %w: no answer within %s", op, engine.ErrUnavailable, limit)
	}
	return explain(op, err, m)
}

// negotiate agrees with the engine on a version of the API, before the first request. The client
// would do it by itself, but reads its version without a lock in some calls that others may
// precede.
func (e *Engine) negotiate(ctx context.Context) error {
	if e.negotiated.Load() {
		return nil
	}
	select {
	case e.negotiation <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-e.negotiation }()
	if e.negotiated.Load() {
		return nil
	}
	ping, err := e.api.Ping(ctx)
	if err != nil {
		return err
	}
	e.api.NegotiateAPIVersionPing(ping)
	e.negotiated.Store(true)
	return nil
}
