package api

import (
	"cmp"
	"context"
	"maps"
	"runtime"
	"time"

	gen "sandbox.internal/gen/lifecycle"
	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/lifecycle"
)

func (h *handlers) GetHealth(
	context.Context, gen.GetHealthRequestObject,
) (gen.GetHealthResponseObject, error) {
	return gen.GetHealth200JSONResponse{Body: gen.Health{Status: "healthy"}}, nil
}

func (h *handlers) GetVersion(
	ctx context.Context, _ gen.GetVersionRequestObject,
) (gen.GetVersionResponseObject, error) {
	_, bounds, err := h.limitsOf(ctx)
	if err != nil {
		return nil, err
	}
	return gen.GetVersion200JSONResponse{
		Body: gen.Version{
			Version:        h.version.Version,
			Commit:         h.version.Commit,
			GoVersion:      runtime.Version(),
			RuntimeClasses: h.classes,
			Engine:         h.describeEngine(caller(ctx)),
			Defaults:       new(h.createDefaults(bounds)),
		},
	}, nil
}

// createDefaults returns what clients with these bounds are to ask for where their users say
// nothing.
func (h *handlers) createDefaults(bounds lifecycle.Bounds) gen.CreateDefaults {
	timeout := cmp.Or(h.defaults.Timeout, time.Hour)
	if bounds.MaxTimeout > 0 {
		timeout = min(timeout, bounds.MaxTimeout)
	}
	limits := bounds.Usual()
	return gen.CreateDefaults{
		Image:          present(h.defaults.Image),
		Timeout:        int(timeout / time.Second),
		ResourceLimits: gen.ResourceLimits{CPU: present(limits["cpu"]), Memory: present(limits["memory"])},
		Entrypoint:     lifecycle.IdleEntrypoint(),
	}
}

// describeEngine returns nil on a cluster. The host's firewall is only its administrators'
// business.
func (h *handlers) describeEngine(principal lifecycle.Principal) *gen.Engine {
	if h.engine == nil {
		return nil
	}
	described := &gen.Engine{Name: h.engine.Name, Version: h.engine.Version}
	if h.engine.Problem != nil && principal.CanAdminister() == nil {
		described.Problem = new(h.engine.Problem())
	}
	if h.engine.HostUsers != nil && principal.CanAdminister() == nil {
		described.HostUsers = new(h.engine.HostUsers())
	}
	if h.engine.GPUs != nil && principal.CanAdminister() == nil {
		described.Gpus = describeGPUs(h.engine.GPUs())
	}
	return described
}

// maxGPUs is how many GPUs of the machine are named.
const maxGPUs = 256

func describeGPUs(kind string, names []string, err error) *gen.EngineGPUs {
	described := &gen.EngineGPUs{Kind: kind, Devices: append([]string{}, names[:min(len(names), maxGPUs)]...)}
	if err != nil {
		described.Problem = new(err.Error())
	}
	return described
}

func (h *handlers) CreateSandbox(
	ctx context.Context, request gen.CreateSandboxRequestObject,
) (gen.CreateSandboxResponseObject, error) {
	principal := caller(ctx)
	if err := principal.CanCreate(); err != nil {
		return nil, err
	}
	most, bounds, err := h.limitsOf(ctx)
	if err != nil {
		return nil, err
	}
	if err := h.checkOrigin(ctx, *request.Body, request.Params.IdempotencyKey != nil); err != nil {
		return nil, err
	}
	spec := fromCreateRequest(*request.Body)
	if spec.Lifecycle != nil && h.sleeper == nil {
		return nil, noSleeper()
	}
	spec.Extensions = memberOf(serve.JSONBody(ctx), "extensions")
	var timing serverTiming
	timing.add("decode", time.Since(serve.Began(ctx)))
	options := lifecycle.CreateOptions{
		Owner: principal.Name,
		Role:  principal.Role,
		Took:  timing.add,

		MaxSandboxes: most,
		Bounds:       bounds,
	}
	if key := request.Params.IdempotencyKey; key != nil {
		options.IdempotencyKey = *key
	}
	sandbox, err := h.backend.Create(ctx, spec, options)
	if err != nil {
		return nil, err
	}
	serve.LogField(ctx, "sandbox_id", sandbox.ID)
	settled, applied := h.wait(ctx, request.Params.Prefer, sandbox.ID)
	if applied != nil {
		sandbox = settled
		timing.addStages(sandbox.Stages)
	}
	return gen.CreateSandbox202JSONResponse{
		Body: toCreatedSandbox(sandbox),
		Headers: gen.CreateSandbox202ResponseHeaders{
			Location:          "/v1/sandboxes/" + sandbox.ID,
			PreferenceApplied: applied,
			ServerTiming:      timing.header(),
		},
	}, nil
}

func (h *handlers) GetSandbox(
	ctx context.Context, request gen.GetSandboxRequestObject,
) (gen.GetSandboxResponseObject, error) {
	sandbox, err := h.authorized(ctx, request.SandboxID, lifecycle.Principal.CanRead)
	if err != nil {
		return nil, err
	}
	if waitOf(value(request.Params.Prefer)) == 0 {
		if sandbox, err = h.backend.Read(ctx, sandbox.ID); err != nil {
			return nil, err
		}
		return sandboxAnswer{sandbox, nil}, nil
	}
	settled, applied := h.wait(ctx, request.Params.Prefer, sandbox.ID)
	if applied != nil {
		sandbox = settled
	}
	return sandboxAnswer{sandbox, applied}, nil
}

func (h *handlers) ListSandboxes(
	ctx context.Context, request gen.ListSandboxesRequestObject,
) (gen.ListSandboxesResponseObject, error) {
	filter, page, err := fromListParams(request.Params)
	if err != nil {
		return nil, err
	}
	filter.Owner = caller(ctx).ListScope()
	listing, err := h.backend.List(ctx, filter, page)
	if err != nil {
		return nil, err
	}
	return listAnswer{listing, page}, nil
}

func (h *handlers) DeleteSandbox(
	ctx context.Context, request gen.DeleteSandboxRequestObject,
) (gen.DeleteSandboxResponseObject, error) {
	if _, err := h.authorized(ctx, request.SandboxID, lifecycle.Principal.CanUse); err != nil {
		return nil, err
	}
	if err := h.backend.Delete(ctx, request.SandboxID); err != nil {
		return nil, err
	}
	_, applied := h.wait(ctx, request.Params.Prefer, request.SandboxID)
	return gen.DeleteSandbox204Response{
		Headers: gen.DeleteSandbox204ResponseHeaders{PreferenceApplied: applied},
	}, nil
}

func (h *handlers) PauseSandbox(
	ctx context.Context, request gen.PauseSandboxRequestObject,
) (gen.PauseSandboxResponseObject, error) {
	if _, err := h.authorized(ctx, request.SandboxID, lifecycle.Principal.CanUse); err != nil {
		return nil, err
	}
	if err := h.pause(ctx, request); err != nil {
		return nil, err
	}
	_, applied := h.wait(ctx, request.Params.Prefer, request.SandboxID)
	return gen.PauseSandbox202Response{
		Headers: gen.PauseSandbox202ResponseHeaders{PreferenceApplied: applied},
	}, nil
}

// pause pauses a sandbox with its memory, or with its files alone.
func (h *handlers) pause(ctx context.Context, request gen.PauseSandboxRequestObject) error {
	if request.Body == nil || !value(request.Body.FilesOnly) {
		return h.backend.Pause(ctx, request.SandboxID)
	}
	if h.snapshots == nil {
		return lifecycle.FilesOnlyUnsupported()
	}
	return h.snapshots.Suspend(ctx, request.SandboxID)
}

func (h *handlers) ResumeSandbox(
	ctx context.Context, request gen.ResumeSandboxRequestObject,
) (gen.ResumeSandboxResponseObject, error) {
	if _, err := h.authorized(ctx, request.SandboxID, lifecycle.Principal.CanUse); err != nil {
		return nil, err
	}
	if err := h.backend.Resume(ctx, request.SandboxID); err != nil {
		return nil, err
	}
	_, applied := h.wait(ctx, request.Params.Prefer, request.SandboxID)
	return gen.ResumeSandbox202Response{
		Headers: gen.ResumeSandbox202ResponseHeaders{PreferenceApplied: applied},
	}, nil
}

func (h *handlers) RenewExpiration(
	ctx context.Context, request gen.RenewExpirationRequestObject,
) (gen.RenewExpirationResponseObject, error) {
	if _, err := h.authorized(ctx, request.SandboxID, lifecycle.Principal.CanUse); err != nil {
		return nil, err
	}
	_, bounds, err := h.limitsOf(ctx)
	if err != nil {
		return nil, err
	}
	if err := bounds.CheckRenewal(time.Now(), request.Body.ExpiresAt); err != nil {
		return nil, err
	}
	expiresAt, err := h.backend.Renew(ctx, request.SandboxID, request.Body.ExpiresAt)
	if err != nil {
		return nil, err
	}
	return gen.RenewExpiration200JSONResponse{Body: gen.Expiration{ExpiresAt: expiresAt}}, nil
}

func (h *handlers) GetEndpoint(
	ctx context.Context, request gen.GetEndpointRequestObject,
) (gen.GetEndpointResponseObject, error) {
	expires, direct := request.Params.Expires, value(request.Params.Direct)
	if expires != nil && direct {
		return nil, serve.Invalid("query parameter direct: cannot be combined with expires")
	}
	// The response has the sandbox's token, with which its bearer can run any command there.
	sandbox, err := h.authorized(ctx, request.SandboxID, lifecycle.Principal.CanUse)
	if err != nil {
		return nil, err
	}
	if value(request.Params.Wake) {
		if err := h.wake(ctx, sandbox); err != nil {
			return nil, err
		}
	}
	location, err := h.backend.Locate(ctx, request.SandboxID, request.Port)
	if err == nil && !h.sleeps(sandbox) { // else a request to the endpoint wakes it
		err = location.Stopped
	}
	if err != nil {
		return nil, err
	}
	r := serve.Request(ctx)
	if location.Daemon == "" && location.Stopped == nil { // no request reaches it through the service or an ingress
		if expires != nil {
			return nil, lifecycle.Conflictf("port %d is the egress sidecar's: its endpoint cannot be "+
				"signed", request.Port)
		}
		direct = true
	}
	if expires != nil {
		answer, err := h.signedEndpoint(r, sandbox, request.Port, location, *expires)
		if err != nil {
			return nil, err
		}
		return gen.GetEndpoint200JSONResponse{Body: answer}, nil
	}
	answer, ok := h.ingress.endpoint(r, sandbox.ID, request.Port)
	if !ok || direct {
		answer = at("http", addressOf(location.Endpoint, r.Host)+location.Endpoint.Path)
	}
	maps.Copy(answer.Headers, location.Endpoint.Headers)
	return gen.GetEndpoint200JSONResponse{Body: answer}, nil
}

// authorized returns the sandbox if allowed holds for the caller and the sandbox.
func (h *handlers) authorized(
	ctx context.Context, id string, allowed func(p lifecycle.Principal, owner string) error,
) (lifecycle.Sandbox, error) {
	serve.LogField(ctx, "sandbox_id", id)
	principal := caller(ctx)
	sandbox, err := h.backend.Get(ctx, id)
	if err != nil {
		return lifecycle.Sandbox{}, err
	}
	if err := allowed(principal, sandbox.Owner); err != nil {
		return lifecycle.Sandbox{}, err
	}
	return sandbox, nil
}
