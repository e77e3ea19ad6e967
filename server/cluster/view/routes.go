package view

import (
	"context"
	"errors"
	"maps"
	"net"
	"strconv"
	"time"

	"github.com/rs/zerolog"
	"k8s.io/apimachinery/pkg/types"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/clock"
	"sandbox.internal/server/lifecycle"
)

// Route is where an ingress finds a sandbox.
type Route struct {
	ID    string
	State lifecycle.State
	// Address is the host and port of the sandbox's execd, empty while there is none, and Token what it demands.
	Address string
	Token   string
}

// RouteTable is kept by FollowRoutes, from one goroutine.
type RouteTable interface {
	Replace(all []Route)
	Update(route Route)
	Forget(id string)
}

// RouteOptions says which cluster an ingress follows.
type RouteOptions struct {
	Kubeconfig, Namespace string // as Connect takes them
	Logger                zerolog.Logger
}

// FollowRoutes keeps an ingress's table as the cluster says, until ctx ends: while the API server does not answer, it stays as it is.
// It returns an error when the options do not say how the cluster is reached.
func FollowRoutes(ctx context.Context, options RouteOptions, to RouteTable) error {
	connection, err := Connect(options.Kubeconfig, options.Namespace)
	if err != nil {
		return err
	}
	defer connection.Close()
	logger := options.Logger.With().Str("namespace", connection.Namespace).Logger()
	f := &follower{api: connection.API, namespace: connection.Namespace, logger: logger, sink: &routes{
		ctx: ctx, table: to, api: connection.API, logger: logger, known: make(map[types.UID]*tokens),
	}, listed: func(err error) {
		if err == nil {
			logger.Info().Msg("routes follow the BatchSandboxes of the cluster")
		}
	}}
	f.run(ctx)
	return nil
}

// routes is an ingress's table as a sink. It keeps the tokens, and nothing else of a resource.
type routes struct {
	ctx    context.Context // of following
	table  RouteTable
	api    getter
	logger zerolog.Logger
	known  map[types.UID]*tokens // by the UID: an id may come back with another token
}

// routeOf is the way to a sandbox: without an address while it has none, and when its Secret cannot be read. As long as the API server does not
// answer, routeOf waits, and with it the watch.
func (r *routes) routeOf(e *Entry) Route {
	route := Route{ID: e.Sandbox.ID, State: e.Sandbox.Status.State}
	if e.Address() == "" || route.State.Final() {
		return route
	}
	mine := r.known[e.Batch.UID]
	if mine == nil {
		mine = e.tokens
		r.known[e.Batch.UID] = mine
	}
	for {
		var err error
		var known *lifecycle.Error
		if route.Token, _, err = mine.read(r.ctx, r.api, e.Batch); err == nil {
			break
		}
		r.logger.Warn().Err(err).Str("sandbox_id", route.ID).Msg("the token of a sandbox cannot be read")
		if !errors.As(err, &known) || known.Kind != lifecycle.KindUnavailable || !clock.Sleep(r.ctx, time.Second) {
			return route
		}
	}
	route.Address = net.JoinHostPort(e.Address(), strconv.Itoa(v1alpha1.PortExecd))
	return route
}

func (r *routes) replace(listed map[string]*Entry, _ uint64) {
	all, live := make([]Route, 0, len(listed)), make(map[types.UID]bool, len(listed))
	for _, e := range listed {
		all = append(all, r.routeOf(e))
		live[e.Batch.UID] = true
	}
	maps.DeleteFunc(r.known, func(uid types.UID, _ *tokens) bool { return !live[uid] })
	r.table.Replace(all)
}

func (r *routes) take(e *Entry, deleted bool) {
	if deleted {
		delete(r.known, e.Batch.UID)
		r.table.Forget(e.Sandbox.ID)
	} else {
		r.table.Update(r.routeOf(e))
	}
}

func (r *routes) advance(uint64) {}
