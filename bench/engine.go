package main

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
)

// engine is the container engine's API, spoken plainly over its socket: the floor of what a sandbox
// costs.
type engine struct {
	url    string
	client *http.Client
}

// baseImage is what the sandboxes of the bench, and the containers beside them, are made of (make
// images).
const baseImage = "sandbox/base:dev"

// egressImage is the sidecar (make images).
const egressImage = "sandbox/egress:dev"

// label marks the containers of the bench.
const label = "sandbox.internal/bench"

// openEngine finds the engine where the service finds it: DOCKER_HOST, else the usual socket.
func openEngine(ctx context.Context) (*engine, error) {
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
	e := &engine{url: "http://engine/v1.41", client: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, target)
		},
	}}}
	if err := e.call(ctx, http.MethodGet, "/images/"+baseImage+"/json", nil, nil); err != nil {
		return nil, fmt.Errorf("the engine needs to have %s (make images): %w", baseImage, err)
	}
	return e, nil
}

func (e *engine) call(ctx context.Context, method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, e.url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := e.client.Do(request)
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

// launch creates and starts a container on the engine's bridge, and returns its id. It publishes
// one port, because a sandbox that can be reached needs one.
func (e *engine) launch(ctx context.Context) (string, error) {
	var created struct{ ID string }
	err := e.call(ctx, http.MethodPost, "/containers/create", map[string]any{
		"Image":        baseImage,
		"Entrypoint":   []string{"sleep", "600"},
		"Labels":       map[string]string{label: "1"},
		"ExposedPorts": map[string]any{"44772/tcp": map[string]any{}},
		"HostConfig": map[string]any{
			"PortBindings": map[string]any{"44772/tcp": []map[string]string{{"HostIp": "127.0.0.1",
				"HostPort": ""}}},
		},
	}, &created)
	if err != nil {
		return "", err
	}
	return created.ID, e.call(ctx, http.MethodPost, "/containers/"+created.ID+"/start", nil, nil)
}

// freeze pauses a container and resumes it.
func (e *engine) freeze(ctx context.Context, id string) error {
	if err := e.call(ctx, http.MethodPost, "/containers/"+id+"/pause", nil, nil); err != nil {
		return err
	}
	return e.call(ctx, http.MethodPost, "/containers/"+id+"/unpause", nil, nil)
}

func (e *engine) remove(ctx context.Context, id string) error {
	return e.call(ctx, http.MethodDelete, "/containers/"+id+"?force=1&v=1", nil, nil)
}

// inspectAll lists the containers with a label and asks for the state of each; there must be that
// many.
func (e *engine) inspectAll(ctx context.Context, name string, count int) error {
	found, err := e.labelled(ctx, name)
	if err != nil {
		return err
	}
	if len(found) != count {
		return fmt.Errorf("the engine has %d containers with %s instead of %d", len(found), name,
			count)
	}
	return concurrently(ctx, count, func(ctx context.Context, i int) error {
		var state struct{ State struct{ Running bool } }
		err := e.call(ctx, http.MethodGet, "/containers/"+found[i]+"/json", nil, &state)
		if err == nil && !state.State.Running {
			err = fmt.Errorf("container %s does not run", found[i])
		}
		return err
	})
}

// labelled returns the ids of the containers with a label (NAME=VALUE or NAME).
func (e *engine) labelled(ctx context.Context, name string) ([]string, error) {
	filters, err := json.Marshal(map[string][]string{"label": {name}})
	if err != nil {
		return nil, err
	}
	var found []struct{ ID string }
	err = e.call(ctx, http.MethodGet,
		"/containers/json?all=1&filters="+url.QueryEscape(string(filters)), nil, &found)
	ids := make([]string, len(found))
	for i, container := range found {
		ids[i] = container.ID
	}
	return ids, err
}

// cleanTimeout bounds the removal of what a run leaves, which may be some hundred containers.
const cleanTimeout = 3 * time.Minute

// clean removes every container that carries one of the labels (NAME=VALUE or NAME), as many of
// them as it can.
func (e *engine) clean(ctx context.Context, labels ...string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	var errs []error
	for _, name := range labels {
		found, err := e.labelled(ctx, name)
		errs = append(errs, err)
		failed := make([]error, len(found))
		errs = append(errs, concurrently(ctx, len(found), func(ctx context.Context, i int) error {
			if err := e.remove(ctx, found[i]); err != nil &&
				!strings.Contains(err.Error(), "No such container") {
				failed[i] = err
			}
			return nil
		}))
		errs = append(errs, failed...)
	}
	return errors.Join(errs...)
}
