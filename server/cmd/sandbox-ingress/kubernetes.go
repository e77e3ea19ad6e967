package main

import (
	"context"

	"github.com/rs/zerolog"

	"sandbox.internal/server/cluster/view"
	"sandbox.internal/server/ingress"
)

// kubernetes are the settings of --kubernetes.
type kubernetes struct {
	on         bool
	kubeconfig string
	namespace  string
}

// source follows the cluster's sandboxes.
func (k kubernetes) source(logger zerolog.Logger) ingress.Source {
	return func(ctx context.Context, routes *ingress.Routes) error {
		return view.FollowRoutes(ctx,
			view.RouteOptions{Kubeconfig: k.kubeconfig, Namespace: k.namespace, Logger: logger},
			adapter{routes})
	}
}

// adapter applies the cluster's routes to the table of the ingress.
type adapter struct{ routes *ingress.Routes }

func (a adapter) Replace(all []view.Route) {
	routes := make([]ingress.Route, 0, len(all))
	for _, route := range all {
		routes = append(routes, convert(route))
	}
	a.routes.Replace(routes)
}

func (a adapter) Update(route view.Route) { a.routes.Update(convert(route)) }
func (a adapter) Forget(id string)        { a.routes.Forget(id) }

func convert(route view.Route) ingress.Route {
	converted := ingress.Route{ID: route.ID, State: route.State}
	if route.Address != "" {
		converted.Endpoint = &ingress.Endpoint{
			Address: route.Address,
			Path:    "/proxy/",
			Token:   route.Token,
		}
	}
	return converted
}
