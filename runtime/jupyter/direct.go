package jupyter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"sandbox.internal/runtime/kernel"
)

// startTimeout is how long a kernel has to answer when the options say nothing. It takes a second
// on a machine with processors to spare and has taken more than a minute on one that was short of
// them. A client that has to ask again would begin from the start.
const startTimeout = 3 * time.Minute

// closeWait is how long Close waits for its kernels, together.
const closeWait = 5 * time.Second

// portAttempts is how often a kernel is started whose ports another process took first.
const portAttempts = 3

// DirectOptions configures a Direct.
type DirectOptions struct {
	// Env is the environment that kernels start with, NAME=value each, and decides where
	// kernelspecs are searched. Names that begin with EXECD_ are the daemon's own and are not
	// passed on.
	Env []string
	// SearchPath replaces the directories that kernelspecs are looked for in, most important first.
	SearchPath []string
	// TempDir is where each kernel's private directory is made; empty means the system's directory
	// for temporary files.
	TempDir string
	// StartTimeout is how long a kernel has to answer after its start; zero means three minutes.
	StartTimeout time.Duration
	// Enter, if not nil, is called before each process is started and leave right afterwards. With
	// an error nothing is started.
	Enter func() (leave func(), err error)
	// AwaitExit, if not nil, returns when a child process has ended, and leaves it to be waited
	// for. Without it a thread is blocked for as long as each kernel lives.
	AwaitExit func(pid int)
	// Frozen, if not nil, reports whether the kernels' processes are stopped: that time does not
	// count as theirs.
	Frozen func() bool
	Logger zerolog.Logger
}

// Direct is a kernel.Host that starts kernels itself and uses the Jupyter wire protocol: no Jupyter
// Server is needed.
type Direct struct {
	options DirectOptions
	dirs    []string

	closing context.Context // ends when Close is called
	close   context.CancelFunc

	mu      sync.Mutex
	closed  bool
	kernels map[*directKernel]struct{}
	starts  sync.WaitGroup
}

var _ kernel.Host = (*Direct)(nil)

// NewDirect returns a host without kernels. It removes what an execd before it could not.
func NewDirect(options DirectOptions) *Direct {
	dirs := options.SearchPath
	if dirs == nil {
		dirs = kernelDirs(options.Env)
	}
	if options.StartTimeout == 0 {
		options.StartTimeout = startTimeout
	}
	if err := sweepConnections(options.TempDir); err != nil {
		options.Logger.Warn().Err(err).Msg("cannot remove directories of earlier kernels")
	}
	closing, cancel := context.WithCancel(context.Background())
	return &Direct{options: options, dirs: dirs, closing: closing, close: cancel,
		kernels: make(map[*directKernel]struct{})}
}

// Specs implements kernel.Host. It reads the directories at each call, so that a kernel installed
// meanwhile is found.
func (d *Direct) Specs(context.Context) ([]kernel.Spec, error) {
	var specs []kernel.Spec
	for _, spec := range findSpecs(d.dirs, d.options.Logger) {
		specs = append(specs, spec.public())
	}
	return specs, nil
}

// Start implements kernel.Host.
func (d *Direct) Start(ctx context.Context, name string,
	options kernel.StartOptions) (kernel.Kernel, error) {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil, fmt.Errorf("%w: it is closed", kernel.ErrUnavailable)
	}
	d.starts.Add(1)
	d.mu.Unlock()
	defer d.starts.Done()

	spec, err := d.spec(name)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithTimeoutCause(ctx, d.options.StartTimeout,
		fmt.Errorf("no answer within %v", d.options.StartTimeout))
	defer cancel()
	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	defer context.AfterFunc(d.closing, func() { abort(errors.New("the host is being closed")) })()

	for attempt := 1; ; attempt++ {
		k, err := startKernel(ctx, spec, options, d.options)
		if err == nil {
			d.add(k)
			return k, nil
		}
		if attempt == portAttempts || ctx.Err() != nil || !portTaken(err) {
			return nil, fmt.Errorf("%w: %s: %w", kernel.ErrStart, name, err)
		}
	}
}

// start starts a process, when it may.
func (o DirectOptions) start(argv, env []string, dir string) (*process, error) {
	if o.Enter != nil {
		leave, err := o.Enter()
		if err != nil {
			return nil, err
		}
		defer leave()
	}
	return startProcess(argv, env, dir, o.AwaitExit)
}

// portTaken reports whether a kernel ended because of a port that is in use, going by what kernels
// say.
func portTaken(err error) bool {
	text := strings.ToLower(err.Error())
	return strings.Contains(text, "address already in use") ||
		strings.Contains(text, "eaddrinuse") || strings.Contains(text, "addrinuse")
}

func (d *Direct) spec(name string) (kernelspec, error) {
	specs := findSpecs(d.dirs, d.options.Logger)
	names := make([]string, 0, len(specs))
	for _, spec := range specs {
		if spec.name == strings.ToLower(name) {
			return spec, nil
		}
		names = append(names, spec.name)
	}
	return kernelspec{},
		fmt.Errorf("%w: %q; installed are: %s", kernel.ErrNoSpec, name, strings.Join(names, ", "))
}

// add keeps a kernel in the table until it has ended.
func (d *Direct) add(k *directKernel) {
	d.mu.Lock()
	d.kernels[k] = struct{}{}
	d.mu.Unlock()
	go func() {
		<-k.gone
		d.mu.Lock()
		delete(d.kernels, k)
		d.mu.Unlock()
	}()
}

// Close implements kernel.Host.
func (d *Direct) Close() error {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.close()
	d.starts.Wait() // Start adds no kernel after this

	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	d.mu.Lock()
	kernels := slices.Collect(maps.Keys(d.kernels))
	d.mu.Unlock()
	var stops errgroup.Group
	for _, k := range kernels {
		stops.Go(func() error { return k.Stop(ctx) })
	}
	if err := stops.Wait(); err != nil {
		return fmt.Errorf("stopping kernels: %w", err)
	}
	return nil
}
