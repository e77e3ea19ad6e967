package ingress

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"

	gen "sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/reach"
	"sandbox.internal/wire/sandboxhttp"
)

const (
	// callTimeout bounds a call of the service other than a stream. The endpoint of a Pending
	// sandbox may take 30 s.
	callTimeout = 40 * time.Second
	// listAttempts bounds how often the list is read because it changed meanwhile.
	listAttempts = 5
	pageSize     = 1000
)

// service is the client of the lifecycle service.
type service struct {
	client  *gen.ClientWithResponses
	http    *http.Client
	lookups singleflight.Group
	// life ends with the ingress: a look-up outlives the request that caused it.
	life context.Context
	end  context.CancelFunc
}

func newService(address, key string) (*service, error) {
	// The service is trusted, but a redirection would carry the key elsewhere.
	s := &service{
		http: sandboxhttp.NewClient(
			sandboxhttp.Options{
				HeaderTimeout:   callTimeout,
				IdleConnections: 16,
				MaxAnswer:       sandboxhttp.Unbounded,
			},
		),
	}
	s.life, s.end = context.WithCancel(context.Background())
	authorise := func(_ context.Context, r *http.Request) error {
		if key != "" {
			r.Header.Set(reach.KeyHeader, key)
		}
		return nil
	}
	var err error
	s.client, err = gen.NewClientWithResponses(address, gen.WithHTTPClient(s.http),
		gen.WithRequestEditorFn(authorise))
	return s, err
}

func (s *service) close() {
	s.end()
	s.http.CloseIdleConnections()
}

// list returns every sandbox that has not ended.
func (s *service) list(ctx context.Context) ([]observation, error) {
	for attempt := 1; ; attempt++ {
		all, stable, err := s.pages(ctx)
		// When a sandbox leaves one page, another moves to a page that was read already.
		if err != nil || stable || attempt == listAttempts {
			return all, err
		}
	}
}

// pages reads the list once. It is stable when nothing moved between its pages.
func (s *service) pages(ctx context.Context) (all []observation, stable bool, err error) {
	var states []gen.SandboxState
	for _, state := range lifecycle.States() {
		if !state.Final() {
			states = append(states, gen.SandboxState(state))
		}
	}
	size, total := pageSize, -1
	stable = true
	for page := 1; ; page++ {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		response, err := s.client.ListSandboxesWithResponse(call,
			&gen.ListSandboxesParams{State: states, Page: &page, PageSize: &size})
		cancel()
		if err != nil {
			return nil, false, err
		}
		if response.JSON200 == nil {
			return nil, false, fmt.Errorf("list of sandboxes: %s", response.Status())
		}
		for _, item := range response.JSON200.Items {
			state := lifecycle.State(item.Status.State)
			all = append(
				all,
				observation{
					id:     item.ID,
					state:  state,
					asleep: mayWake(state, item.Status.Reason),
					onDisk: lifecycle.Reason(item.Status.Reason).IsOnDisk(),
					since:  item.Status.LastTransitionAt,
				},
			)
		}
		if total >= 0 && total != response.JSON200.Pagination.TotalItems {
			stable = false
		}
		total = response.JSON200.Pagination.TotalItems
		if !response.JSON200.Pagination.HasNextPage {
			return all, stable, nil
		}
	}
}

// errNotKnown: the service has no such sandbox. errNoEndpoint: it does not say where the sandbox
// is. errNotWoken: the sandbox does not run, and is not woken.
var (
	errNotKnown   = errors.New("the service has no such sandbox")
	errNoEndpoint = errors.New("the service does not say where the sandbox is")
	errNotWoken   = errors.New("the sandbox is not woken")
)

// endpoint looks up where a sandbox is, and has it woken first if it sleeps and that is asked for.
// Requests for one sandbox share one look-up, which outlives them.
func (s *service) endpoint(ctx context.Context, id string, wake bool) (*Endpoint, error) {
	result := s.lookups.DoChan(fmt.Sprint(id, wake), func() (any, error) {
		call, cancel := context.WithTimeout(s.life, callTimeout)
		defer cancel()
		return s.lookUp(call, id, wake)
	})
	select {
	case answer := <-result:
		if answer.Err != nil {
			return nil, answer.Err
		}
		return answer.Val.(*Endpoint), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (s *service) lookUp(ctx context.Context, id string, wake bool) (*Endpoint, error) {
	params := &gen.GetEndpointParams{Direct: new(true)}
	if wake { // an older service refuses the parameter, and lets none sleep
		params.Wake = new(true)
	}
	response, err := s.client.GetEndpointWithResponse(ctx, id, lifecycle.DaemonPort, params)
	switch {
	case err == nil && wake && response.StatusCode() == http.StatusConflict:
		return nil, errNotWoken
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errNoEndpoint, err)
	case response.StatusCode() == http.StatusNotFound:
		return nil, errNotKnown
	case response.JSON200 == nil:
		return nil, fmt.Errorf("%w: %s", errNoEndpoint, response.Status())
	}
	address, path, _ := strings.Cut(response.JSON200.Endpoint, "/")
	// The paths of other ports follow from this one: /proxy/44772, or /{id}/44772 on the host's
	// network.
	before, ok := strings.CutSuffix("/"+path, fmt.Sprint(lifecycle.DaemonPort))
	if u, err := url.Parse("http://" + address); err != nil || u.Port() == "" || !ok {
		return nil, fmt.Errorf("%w: its endpoint is %q", errNoEndpoint, response.JSON200.Endpoint)
	}
	return &Endpoint{
		Address: address,
		Path:    before,
		Token:   response.JSON200.Headers[lifecycle.TokenHeader],
	}, nil
}
