package cluster

import (
	"context"
	"net"
	"strconv"
	"time"

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
	f := &follower{api: api, namespace: namespace, logger: options.Logger, sink: routes{to}}
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

func routeOf(e *entry) Route {
	route := Route{ID: e.sandbox.ID, State: e.sandbox.Status.State, Token: e.token()}
	if address := e.address(); address != "" {
		route.Address = net.JoinHostPort(address, strconv.Itoa(v1alpha1.PortExecd))
	}
	return route
}

// routes is a gateway's table as a sink. A gateway reads and does nothing else: it has neither a Cluster nor a client that writes.
type routes struct{ table RouteTable }

func (r routes) replace(listed map[string]*entry, _ uint64) {
	all := make([]Route, 0, len(listed))
	for _, e := range listed {
		all = append(all, routeOf(e))
	}
	r.table.Replace(all)
}

func (r routes) take(e *entry, deleted bool) {
	if deleted {
		r.table.Forget(e.sandbox.ID)
	} else {
		r.table.Update(routeOf(e))
	}
}

func (r routes) advance(uint64) {}
