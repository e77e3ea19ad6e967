package ingress

import (
	"bytes"
	"fmt"
	"net"
	"os"

	"github.com/pelletier/go-toml/v2"

	"sandbox.internal/server/lifecycle"
)

// loadRoutes reads static routes from a TOML file: [[routes]] with sandbox, token, address or host,
// and state.
func loadRoutes(path string) ([]observation, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	routes, err := parseRoutes(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return routes, nil
}

func parseRoutes(text []byte) ([]observation, error) {
	var file struct {
		Routes []struct {
			Sandbox string `toml:"sandbox"`
			Address string `toml:"address"`
			Host    string `toml:"host"`
			Token   string `toml:"token"`
			State   string `toml:"state"`
		} `toml:"routes"`
	}
	decoder := toml.NewDecoder(bytes.NewReader(text))
	if err := decoder.DisallowUnknownFields().Decode(&file); err != nil {
		return nil, err
	}
	known := map[string]bool{}
	var routes []observation
	for i, route := range file.Routes {
		key := fmt.Sprintf("routes[%d]", i)
		one := observation{
			id:       route.Sandbox,
			state:    lifecycle.StateRunning,
			endpoint: &Endpoint{Address: route.Address, Path: "/proxy/", Token: route.Token},
		}
		_, _, addressErr := net.SplitHostPort(route.Address)
		switch {
		case !validID(route.Sandbox):
			return nil, fmt.Errorf(
				"%s.sandbox: must be lower-case letters, digits and inner hyphens, at most 63 "+
					"(got %q)",
				key, route.Sandbox)
		case known[route.Sandbox]:
			return nil, fmt.Errorf("%s.sandbox: %s has a route already", key, route.Sandbox)
		case (route.Address == "") == (route.Host == ""):
			return nil, fmt.Errorf(
				"%s: needs either address, the host and port of the sandbox's daemon, or host, "+
					"whose ports are the sandbox's own",
				key)
		case route.Address != "" && addressErr != nil:
			return nil, fmt.Errorf("%s.address: must be a host and a port: %w", key, addressErr)
		case route.Token == "":
			return nil, fmt.Errorf(
				"%s.token: is required: clients send it in the header X-EXECD-ACCESS-TOKEN", key)
		}
		known[route.Sandbox] = true
		if route.Host != "" {
			one.endpoint.Address, one.endpoint.Path = route.Host, ""
		}
		if route.State != "" {
			state, err := lifecycle.ParseState(route.State)
			if err != nil {
				return nil, fmt.Errorf("%s.state: %w", key, err)
			}
			one.state = state
		}
		routes = append(routes, one)
	}
	return routes, nil
}
