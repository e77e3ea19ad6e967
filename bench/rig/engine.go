// Package rig starts and uses what is measured, and what its floors are: services, daemons,
// engines, and the program of the floors.
package rig

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"sandbox.internal/bench/measure"
)

// Engine is the container engine's API, spoken plainly over its socket: the floor of what a sandbox
// costs.
type Engine struct {
	URL    string
	Client *http.Client
}

// BaseImage is what the sandboxes of the bench, and the containers beside them, are made of (make
// images).
const BaseImage = "sandbox/base:dev"

// EgressImage is the sidecar (make images).
const EgressImage = "sandbox/egress:dev"

// Label marks the containers of the bench.
const Label = "sandbox.internal/bench"

// OpenEngine finds the engine where the service finds it: DOCKER_HOST, else the usual socket.
func OpenEngine(ctx context.Context) (*Engine, error) {
	host := os.Getenv("DOCKER_HOST")
	if host == "" {
		host = "unix:///var/run/docker.sock"
	}
	address, err := url.Parse(host)
	if err != nil {
		return nil, fmt.Errorf("DOCKER_HOST: %w", err)
	}
	network, target := "tcp", address.Host
	if address.Scheme == "unix" {
		network, target = "unix", address.Path
	}
	var dialer net.Dialer
	e := &Engine{URL: "http://engine/v1.41", Client: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, target)
		},
	}}}
	if err := e.Call(ctx, http.MethodGet, "/images/"+BaseImage+"/json", nil, nil); err != nil {
		return nil, fmt.Errorf("the engine needs to have %s (make images): %w", BaseImage, err)
	}
	return e, nil
}

// Call sends a request and decodes the answer into out unless that is nil.
func (e *Engine) Call(ctx context.Context, method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, e.URL+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := e.Client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("%s %s: %s: %s", method, path, response.Status, bytes.TrimSpace(answer))
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(answer, out)
}

// Launch creates and starts a container on the engine's bridge, and returns its id. It publishes
// one port, because a sandbox that can be reached needs one.
func (e *Engine) Launch(ctx context.Context) (string, error) {
	var created struct{ ID string }
	err := e.Call(ctx, http.MethodPost, "/containers/create", map[string]any{
		"Image":        BaseImage,
		"Entrypoint":   []string{"sleep", "600"},
		"Labels":       map[string]string{Label: "1"},
		"ExposedPorts": map[string]any{"44772/tcp": map[string]any{}},
		"HostConfig": map[string]any{
			"PortBindings": map[string]any{"44772/tcp": []map[string]string{{"HostIp": "127.0.0.1",
				"HostPort": ""}}},
		},
	}, &created)
	if err != nil {
		return "", err
	}
	return created.ID, e.Call(ctx, http.MethodPost, "/containers/"+created.ID+"/start", nil, nil)
}

// Freeze pauses a container and resumes it.
func (e *Engine) Freeze(ctx context.Context, id string) error {
	if err := e.Call(ctx, http.MethodPost, "/containers/"+id+"/pause", nil, nil); err != nil {
		return err
	}
	return e.Call(ctx, http.MethodPost, "/containers/"+id+"/unpause", nil, nil)
}

// Remove removes a container, running or not.
func (e *Engine) Remove(ctx context.Context, id string) error {
	return e.Call(ctx, http.MethodDelete, "/containers/"+id+"?force=1&v=1", nil, nil)
}

// InspectAll lists the containers with a label and asks for the state of each; there must be that
// many.
func (e *Engine) InspectAll(ctx context.Context, name string, count int) error {
	found, err := e.labelled(ctx, name)
	if err != nil {
		return err
	}
	if len(found) != count {
		return fmt.Errorf("the engine has %d containers with %s instead of %d", len(found), name,
			count)
	}
	return measure.Concurrently(ctx, count, func(ctx context.Context, i int) error {
		var state struct{ State struct{ Running bool } }
		err := e.Call(ctx, http.MethodGet, "/containers/"+found[i]+"/json", nil, &state)
		if err == nil && !state.State.Running {
			err = fmt.Errorf("container %s does not run", found[i])
		}
		return err
	})
}

// labelled returns the ids of the containers with a label (NAME=VALUE or NAME).
func (e *Engine) labelled(ctx context.Context, name string) ([]string, error) {
	filters, err := json.Marshal(map[string][]string{"label": {name}})
	if err != nil {
		return nil, err
	}
	var found []struct{ ID string }
	err = e.Call(ctx, http.MethodGet,
		"/containers/json?all=1&filters="+url.QueryEscape(string(filters)), nil, &found)
	ids := make([]string, len(found))
	for i, container := range found {
		ids[i] = container.ID
	}
	return ids, err
}

// cleanTimeout bounds the removal of what a run leaves, which may be some hundred containers.
const cleanTimeout = 3 * time.Minute

// Clean removes every container that carries one of the labels (NAME=VALUE or NAME), as many of
// them as it can.
func (e *Engine) Clean(ctx context.Context, labels ...string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	var errs []error
	for _, name := range labels {
		found, err := e.labelled(ctx, name)
		errs = append(errs, err)
		failed := make([]error, len(found))
		errs = append(errs, measure.Concurrently(ctx, len(found), func(ctx context.Context, i int) error {
			if err := e.Remove(ctx, found[i]); err != nil &&
				!strings.Contains(err.Error(), "No such container") {
				failed[i] = err
			}
			return nil
		}))
		errs = append(errs, failed...)
	}
	return errors.Join(errs...)
}
