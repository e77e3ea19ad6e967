package mcp

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	sandbox "sandbox.internal/sdk/go"
)

const (
	// defaultLife and the limits are of a sandbox's life, in seconds; the limits are the contract's.
	defaultLife = 900
	maxLife     = 86400
	// maxListed is how many sandboxes one call lists.
	maxListed = 50
	// leavePatience is how long the deletion of a sandbox may take whose creator has gone.
	leavePatience = 10 * time.Second
)

// addLife adds the tools for the lives of sandboxes.
func (t *tools) addLife(server *mcp.Server) {
	add(server, &mcp.Tool{Name: "create_sandbox", Description: "Create a sandbox and wait until it runs. Returns its id.",
		Annotations: changes("Create a sandbox", false, false, true)}, t.create)
	add(server, &mcp.Tool{Name: "list_sandboxes", Description: "List your sandboxes, newest first.",
		Annotations: readOnly("List sandboxes")}, t.list)
	add(server, &mcp.Tool{Name: "renew_sandbox", Description: "Make a sandbox expire later.",
		Annotations: changes("Renew a sandbox", false, true, false)}, t.renew)
	add(server, &mcp.Tool{Name: "pause_sandbox",
		Description: "Pause a sandbox, keeping its processes and memory, or resume it. It expires all the same.",
		Annotations: changes("Pause or resume a sandbox", false, true, false)}, t.pause)
	add(server, &mcp.Tool{Name: "delete_sandbox", Description: "Delete a sandbox with everything in it.",
		Annotations: changes("Delete a sandbox", true, true, false)}, t.delete)
}

type createInput struct {
	Image      string            `json:"image" jsonschema:"container image, e.g. python:3.12"`
	Life       int               `json:"life_seconds,omitempty" jsonschema:"60 to 86400; default 900"`
	Name       string            `json:"name,omitempty" jsonschema:"label for people"`
	Env        map[string]string `json:"env,omitempty"`
	CPU        string            `json:"cpu,omitempty" jsonschema:"e.g. 500m; default 1"`
	Memory     string            `json:"memory,omitempty" jsonschema:"e.g. 512Mi; default 1Gi"`
	AllowHosts []string          `json:"allow_hosts,omitempty" jsonschema:"the only domains or CIDRs it may reach; default all"`
}

func (t *tools) create(ctx context.Context, request *mcp.CallToolRequest, in createInput) ([]mcp.Content, error) {
	if in.Life == 0 {
		in.Life = defaultLife
	}
	if in.Life < 60 || in.Life > maxLife {
		return nil, fmt.Errorf("life_seconds must be 60 to %d, not %d", maxLife, in.Life)
	}
	options := sandbox.CreateOptions{Image: in.Image, Timeout: time.Duration(in.Life) * time.Second,
		Env: in.Env, CPU: in.CPU, Memory: in.Memory, Metadata: map[string]string{"created-by": "mcp"}, Wait: -1}
	if options.CPU == "" {
		options.CPU = "1"
	}
	if options.Memory == "" {
		options.Memory = "1Gi"
	}
	if in.Name != "" {
		options.Metadata["name"] = in.Name
	}
	if in.AllowHosts != nil {
		policy := sandbox.NetworkPolicy{DefaultAction: sandbox.Ptr(sandbox.Deny)}
		for _, host := range in.AllowHosts {
			policy.Egress = append(policy.Egress, sandbox.EgressRule{Action: sandbox.Allow, Target: host})
		}
		options.NetworkPolicy = &policy
	}
	client, err := t.client(ctx)
	if err != nil {
		return nil, err
	}
	box, err := client.Create(ctx, options)
	if err != nil {
		return nil, err
	}
	info, err := started(ctx, request, box)
	if err != nil {
		if ctx.Err() != nil { // nobody has learned its id
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leavePatience)
			defer cancel()
			err = errors.Join(err, box.Delete(ctx))
		}
		return nil, err
	}
	return text("id: %s\nstate: %s\nexpires: %s", info.ID, info.Status.State, info.ExpiresAt.Format(time.RFC3339)), nil
}

// started waits until a new sandbox runs, and reports how far it is.
func started(ctx context.Context, request *mcp.CallToolRequest, box *sandbox.Sandbox) (sandbox.Info, error) {
	progress := newProgress(ctx, request)
	defer progress.stop()
	for event, err := range box.Events(ctx, sandbox.EventOptions{FromStart: true}) {
		if err != nil {
			return sandbox.Info{}, err
		}
		switch {
		case event.Stage != nil:
			progress.say(*event.Stage)
		case event.Type == "progress" && event.Message != nil:
			progress.say(*event.Message)
		}
		if event.Type != "stage" && event.Type != "progress" && (event.To == nil || *event.To != sandbox.Pending) {
			break
		}
	}
	return box.Wait(ctx, sandbox.Running)
}

type listInput struct {
	State string `json:"state,omitempty" jsonschema:"only this state, e.g. Running"`
}

func (t *tools) list(ctx context.Context, _ *mcp.CallToolRequest, in listInput) ([]mcp.Content, error) {
	client, err := t.client(ctx)
	if err != nil {
		return nil, err
	}
	var options sandbox.ListOptions
	if in.State != "" {
		options.States = []string{in.State}
	}
	var lines strings.Builder
	count := 0
	for info, err := range client.List(ctx, options) {
		if err != nil {
			return nil, err
		}
		if count++; count > maxListed {
			fmt.Fprintf(&lines, "There are more than %d; choose a state, or delete what is not needed.\n", maxListed)
			break
		}
		fmt.Fprintf(&lines, "%s %s image=%s name=%q expires=%s\n", info.ID, info.Status.State,
			info.Image.URI, info.Metadata["name"], info.ExpiresAt.Format(time.RFC3339))
	}
	if count == 0 {
		return text("There are no sandboxes."), nil
	}
	return text("%s", lines.String()), nil
}

// boxInput is the sandbox that a call is about. Its description is short: it is in every tool.
type boxInput struct {
	Sandbox string `json:"sandbox" jsonschema:"id"`
}

type renewInput struct {
	boxInput
	Life int `json:"life_seconds" jsonschema:"from now, up to 86400"`
}

func (t *tools) renew(ctx context.Context, _ *mcp.CallToolRequest, in renewInput) ([]mcp.Content, error) {
	if in.Life < 1 || in.Life > maxLife {
		return nil, fmt.Errorf("life_seconds must be 1 to %d, not %d", maxLife, in.Life)
	}
	box, err := t.box(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	until, err := box.Renew(ctx, time.Duration(in.Life)*time.Second)
	if err != nil {
		return nil, err
	}
	return text("expires: %s", until.Format(time.RFC3339)), nil
}

type pauseInput struct {
	boxInput
	Paused bool `json:"paused" jsonschema:"true pauses, false resumes"`
}

func (t *tools) pause(ctx context.Context, _ *mcp.CallToolRequest, in pauseInput) ([]mcp.Content, error) {
	box, err := t.box(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	want, change := sandbox.Running, box.Resume
	if in.Paused {
		want, change = sandbox.Paused, box.Pause
	}
	if box.Info().Status.State != want {
		if err := change(ctx); err != nil {
			return nil, err
		}
	}
	return text("state: %s", want), nil
}

func (t *tools) delete(ctx context.Context, _ *mcp.CallToolRequest, in boxInput) ([]mcp.Content, error) {
	box, err := t.box(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	if err := box.Delete(ctx); err != nil {
		return nil, err
	}
	return text("deleted"), nil
}
