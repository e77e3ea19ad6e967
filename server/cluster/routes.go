package cluster

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
	"sandbox.internal/server/lifecycle"
)

// Route is where a gateway finds a sandbox.
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

// FollowRoutes keeps a gateway's table as the cluster says, until ctx ends: while the API server does not answer, it stays as it is.
// Of the options it takes Kubeconfig, Namespace and Logger. It returns an error when they do not tell how the cluster is reached.
func FollowRoutes(ctx context.Context, options Options, to RouteTable) error {
	config, namespace, err := connection(options.Kubeconfig)
	if err != nil {
		return err
	}
	if options.Namespace != "" {
		namespace = options.Namespace
	}
	api, _, disconnect, err := clients(config)
	if err != nil {
		return err
	}
	defer disconnect()
	f := &follower{api: api, namespace: namespace, logger: options.Logger, sink: &routes{ctx: ctx, table: to, api: api, logger: options.Logger, known: make(map[types.UID]*tokens)}}
	for {
		version, err := f.list(ctx)
		if err == nil {
			f.logger.Info().Str("namespace", namespace).Msg("routes follow the BatchSandboxes of the cluster")
			f.follow(ctx, version)
			return nil
		}
		if ctx.Err() != nil {
			return nil
		}
		f.logger.Warn().Err(err).Str("namespace", namespace).Msg("the cluster's BatchSandboxes cannot be read yet")
		sleep(ctx, time.Second)
	}
}

// routes is a gateway's table as a sink. A gateway reads and does nothing else: it has neither a Cluster nor a client that writes.
type routes struct {
	ctx    context.Context // of following
	table  RouteTable
	api    getter
	logger zerolog.Logger
	known  map[types.UID]*tokens // by the UID: an id may come back with another token
}

// routeOf is the way to a sandbox: without an address while it has none, and when its Secret cannot be read. As long as the API server does not
// answer, routeOf waits: nothing else is learned of the cluster meanwhile.
func (r *routes) routeOf(e *entry) Route {
	route := Route{ID: e.sandbox.ID, State: e.sandbox.Status.State}
	if e.address() == "" || route.State.Final() {
		return route
	}
	mine := r.known[e.batch.UID]
	if mine == nil {
		mine = e.tokens
		r.known[e.batch.UID] = mine
	}
	for {
		var err error
		var known *lifecycle.Error
		if route.Token, _, err = mine.read(r.ctx, r.api, e.batch); err == nil {
			break
		}
		r.logger.Warn().Err(err).Str("sandbox_id", route.ID).Msg("the token of a sandbox cannot be read")
		if !errors.As(err, &known) || known.Kind != lifecycle.KindUnavailable || !sleep(r.ctx, time.Second) {
			return route
		}
	}
	route.Address = net.JoinHostPort(e.address(), strconv.Itoa(v1alpha1.PortExecd))
	return route
}

func (r *routes) replace(listed map[string]*entry, _ uint64) {
	all, live := make([]Route, 0, len(listed)), make(map[types.UID]bool, len(listed))
	for _, e := range listed {
		all = append(all, r.routeOf(e))
		live[e.batch.UID] = true
	}
	maps.DeleteFunc(r.known, func(uid types.UID, _ *tokens) bool { return !live[uid] })
	r.table.Replace(all)
}

func (r *routes) take(e *entry, deleted bool) {
	if deleted {
		delete(r.known, e.batch.UID)
		r.table.Forget(e.sandbox.ID)
	} else {
		r.table.Update(r.routeOf(e))
	}
}

func (r *routes) advance(uint64) {}
