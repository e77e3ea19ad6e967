package jupyter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/kernel"
)

const (
	// specsTime bounds the list of kernelspecs. A server that has just started loads half of itself
	// for it, on a busy machine for longer than ten seconds.
	specsTime = 30 * time.Second
	// interruptTime bounds the request for an interrupt, which a server sends a signal for.
	interruptTime = 10 * time.Second
	// createTime bounds the start of a kernel's process, which may come too late for the one who
	// asked.
	createTime = time.Minute
	// retryTime is how soon a start must have failed to be tried again.
	retryTime = 30 * time.Second
	// removeTime bounds a kernel's end. The server gives a busy kernel 5 s before it uses force.
	removeTime = 15 * time.Second
)

var errClosed = fmt.Errorf("%w: its use here has been closed", kernel.ErrUnavailable)

// ServerOptions say which Jupyter Server to use.
type ServerOptions struct {
	// URL is the server's base, e.g. http://127.0.0.1:8888, with the path of ServerApp.base_url if
	// it has one.
	URL string
	// Token is what the server demands; empty for a server without a token. It travels in a header,
	// never in a URL.
	Token string
	// Frozen, if not nil, reports whether the kernels' processes are stopped: that time does not
	// count as theirs.
	Frozen func() bool
	Logger zerolog.Logger
}

// Server is a [kernel.Host] on a Jupyter Server: kernels are started and ended over REST, and each
// has a WebSocket of its own.
//
// When the connection breaks, the kernel counts as ended and is removed from the server, because
// output that was under way is lost. A kernel that the server restarts by itself counts as ended,
// too: its variables are lost.
//
// The server takes [kernel.StartOptions].Dir relative to its root: it works if that is /
// (--ServerApp.root_dir=/). And it throws output away above a rate, with a word about it on stderr,
// unless it runs with --ServerApp.iopub_data_rate_limit=0 --ServerApp.iopub_msg_rate_limit=0.
type Server struct {
	base   *url.URL
	token  string
	client *http.Client
	frozen func() bool
	log    zerolog.Logger

	mu      sync.Mutex
	closed  bool
	kernels map[*serverKernel]struct{}
	work    sync.WaitGroup // what goes on behind the calls
}

var _ kernel.Host = (*Server)(nil)

// NewServer prepares a Server. It does not connect: a server that is down now may be up later.
func NewServer(options ServerOptions) (*Server, error) {
	base, err := url.Parse(options.URL)
	if err != nil {
		// Not the whole error: it has the URL, and that may have a secret.
		var reason *url.Error
		if errors.As(err, &reason) {
			err = reason.Err
		}
		return nil, fmt.Errorf("the Jupyter Server's URL: %w", err)
	}
	switch {
	case base.Scheme != "http" && base.Scheme != "https", base.Host == "":
		return nil,
			errors.New("the Jupyter Server's URL must be http://host:port or https://host:port")
	case base.User != nil || base.RawQuery != "" || base.Fragment != "":
		return nil,
			errors.New(
				"the Jupyter Server's URL must have no user, query or fragment: the token goes into --jupyter-token")
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = dialQuick
	return &Server{
		base:  base,
		token: options.Token,
		client: &http.Client{
			Transport: transport,
			// An answer that sends us elsewhere is a login page: it is reported, not followed.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		frozen:  options.Frozen,
		log:     options.Logger,
		kernels: make(map[*serverKernel]struct{}),
	}, nil
}

// Specs implements [kernel.Host].
func (s *Server) Specs(ctx context.Context) ([]kernel.Spec, error) {
	ctx, cancel := context.WithTimeout(ctx, specsTime)
	defer cancel()
	var answer struct {
		Specs map[string]struct {
			Spec struct {
				Language    string `json:"language"`
				DisplayName string `json:"display_name"`
			} `json:"spec"`
		} `json:"kernelspecs"`
	}
	if err := s.call(ctx, http.MethodGet, "api/kernelspecs", nil, &answer); err != nil {
		return nil, fmt.Errorf("asking for the kernelspecs: %w", unavailable(err))
	}
	specs := make([]kernel.Spec, 0, len(answer.Specs))
	for name, spec := range answer.Specs {
		specs = append(specs,
			kernel.Spec{Name: name, Language: spec.Spec.Language,
				DisplayName: spec.Spec.DisplayName})
	}
	slices.SortFunc(specs, func(a, b kernel.Spec) int { return cmp.Compare(a.Name, b.Name) })
	return specs, nil
}

// Start implements [kernel.Host]. A kernel that does not come up is started a second time: a server
// takes ports for its kernels that another process may take first. A slow failure would take as
// long again, so it is not repeated.
func (s *Server) Start(ctx context.Context, spec string,
	options kernel.StartOptions) (kernel.Kernel, error) {
	began := time.Now()
	k, err := s.start(ctx, spec, options)
	if errors.Is(err, kernel.ErrStart) && ctx.Err() == nil && time.Since(began) < retryTime {
		s.log.Warn().Err(err).Str("kernelspec",
			spec).Msg("cannot start a kernel; retrying once")
		k, err = s.start(ctx, spec, options)
	}
	if err != nil {
		return nil, err
	}
	return k, nil
}

func (s *Server) start(ctx context.Context, spec string,
	options kernel.StartOptions) (*serverKernel, error) {
	if spec == "" { // the server would take its default
		return nil, fmt.Errorf("%w: the name is empty", kernel.ErrNoSpec)
	}
	question := map[string]string{"name": spec}
	if options.Dir != "" {
		question["path"] = strings.TrimPrefix(options.Dir, "/")
	}
	k, err := s.create(ctx, question)
	if err != nil {
		return nil, s.startFailure(ctx, spec, err)
	}
	if err := k.connect(ctx); err != nil {
		k.discard(err)
		return nil, err
	}
	return k, nil
}

// create makes the server start a kernel. When ctx ends first, the kernel that may still come is
// removed behind our back.
func (s *Server) create(ctx context.Context, question any) (*serverKernel, error) {
	if err := s.beginWork(); err != nil {
		return nil, err
	}
	created, failed := make(chan *serverKernel), make(chan error, 1)
	go func() {
		defer s.work.Done()
		unhurried, cancel := context.WithTimeout(context.WithoutCancel(ctx), createTime)
		defer cancel()
		var answer struct {
			ID string `json:"id"`
		}
		if err := s.call(unhurried, http.MethodPost, "api/kernels", question, &answer); err != nil {
			failed <- err
			return
		}
		k := newServerKernel(s, answer.ID)
		s.mu.Lock()
		s.kernels[k] = struct{}{}
		s.mu.Unlock()
		select {
		case created <- k:
		case <-ctx.Done():
			k.discard(ctx.Err())
		}
	}()
	select {
	case k := <-created:
		return k, nil
	case err := <-failed:
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// startFailure finds the reason behind the server's refusal to start a kernel: its status differs
// between versions.
func (s *Server) startFailure(ctx context.Context, spec string, refusal error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("starting a kernel: %w", ctx.Err())
	}
	if errors.Is(refusal, errClosed) {
		return refusal
	}
	if status := (*statusError)(nil); !errors.As(refusal, &status) || status.refused() {
		return fmt.Errorf("starting a kernel: %w", unavailable(refusal))
	}
	specs, err := s.Specs(ctx)
	if err != nil {
		return err
	}
	names := make([]string, len(specs))
	for i := range specs {
		names[i] = specs[i].Name
	}
	if !slices.Contains(names, spec) {
		return fmt.Errorf("%w: %q; installed are: %s", kernel.ErrNoSpec, spec,
			strings.Join(names, ", "))
	}
	return fmt.Errorf("%w: %w", kernel.ErrStart, refusal)
}

// beginWork announces work that Close waits for; work.Done ends it.
func (s *Server) beginWork() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	s.work.Add(1)
	return nil
}

func (s *Server) forget(k *serverKernel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.kernels, k)
}

// Close implements [kernel.Host]. Kernels that cannot be ended are in the error.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	kernels := make([]*serverKernel, 0, len(s.kernels))
	for k := range s.kernels {
		kernels = append(kernels, k)
	}
	s.mu.Unlock()

	failures := make([]error, len(kernels))
	var stops sync.WaitGroup
	for i, k := range kernels {
		stops.Go(func() { failures[i] = k.Stop(context.Background()) })
	}
	stops.Wait()
	s.work.Wait()
	s.client.CloseIdleConnections()
	return errors.Join(failures...)
}
