package api

import (
	"slices"
	"time"

	gen "sandbox.internal/gen/lifecycle"
	"sandbox.internal/server/lifecycle"
)

const (
	defaultPage     = 1
	defaultPageSize = 20
)

// fromCreateRequest leaves the extensions out: they are read from the bytes of the body.
func fromCreateRequest(r gen.CreateSandboxRequest) lifecycle.Spec {
	spec := lifecycle.Spec{
		Image:        r.Image.URI,
		SnapshotID:   value(r.SnapshotID),
		Timeout:      time.Duration(r.Timeout) * time.Second,
		Resources:    fromResourceLimits(value(r.ResourceLimits)),
		Entrypoint:   r.Entrypoint,
		Env:          r.Env,
		Metadata:     r.Metadata,
		RuntimeClass: value(r.RuntimeClass),

		ImageEntrypoint: value(r.ImageEntrypoint),
	}
	if requests := r.ResourceRequests; requests != nil {
		spec.Requests = fromResourceLimits(gen.ResourceLimits{CPU: requests.CPU, Memory: requests.Memory})
	}
	if auth := r.Image.Auth; auth != nil {
		spec.Auth = &lifecycle.ImageAuth{Username: auth.Username, Password: auth.Password}
	}
	spec.NetworkPolicy = fromNetworkPolicy(r.NetworkPolicy)
	if r.Lifecycle != nil {
		spec.Lifecycle = new(lifecycle.DefaultLifecycle().With(fromLifecycle(*r.Lifecycle)))
	}
	for _, v := range r.Volumes {
		volume := lifecycle.Volume{
			Name:      v.Name,
			MountPath: v.MountPath,
			ReadOnly:  value(v.ReadOnly),
			SubPath:   value(v.SubPath),
		}
		if v.Host != nil {
			volume.HostPath = v.Host.Path
		}
		if v.Pvc != nil {
			volume.ClaimName = v.Pvc.ClaimName
		}
		spec.Volumes = append(spec.Volumes, volume)
	}
	return spec
}

func fromResourceLimits(r gen.ResourceLimits) lifecycle.ResourceLimits {
	limits := lifecycle.ResourceLimits{}
	for key, quantity := range map[string]*string{"cpu": r.CPU, "memory": r.Memory, "gpu": r.Gpu} {
		if quantity != nil {
			limits[key] = *quantity
		}
	}
	return limits
}

func fromListParams(p gen.ListSandboxesParams) (lifecycle.Filter, lifecycle.Page, error) {
	var filter lifecycle.Filter
	page := lifecycle.Page{Number: defaultPage, Size: defaultPageSize}
	for _, name := range p.State {
		state, err := lifecycle.ParseState(name)
		if err != nil {
			return filter, page, err
		}
		if !slices.Contains(filter.States, state) { // each is compared with the state of each sandbox
			filter.States = append(filter.States, state)
		}
	}
	var err error
	if filter.Metadata, err = lifecycle.ParseMetadataFilter(value(p.Metadata)); err != nil {
		return filter, page, err
	}
	if p.Page != nil {
		page.Number = *p.Page
	}
	if p.PageSize != nil {
		page.Size = *p.PageSize
	}
	return filter, page, nil
}

func toCreatedSandbox(s lifecycle.Sandbox) gen.CreatedSandbox {
	return gen.CreatedSandbox{
		ID:         s.ID,
		Status:     toStatus(s.Status),
		Metadata:   toMetadata(s.Metadata),
		Entrypoint: s.Entrypoint,
		CreatedAt:  s.CreatedAt,
		ExpiresAt:  s.ExpiresAt,
	}
}

func toSandbox(s lifecycle.Sandbox) gen.Sandbox {
	sandbox := gen.Sandbox{
		ID:         s.ID,
		Image:      gen.Image{URI: s.Image},
		Status:     toStatus(s.Status),
		Metadata:   toMetadata(s.Metadata),
		Entrypoint: s.Entrypoint,
		CreatedAt:  s.CreatedAt,
		ExpiresAt:  s.ExpiresAt,
	}
	if s.RuntimeClass != "" {
		sandbox.RuntimeClass = &s.RuntimeClass
	}
	if s.Owner != "" {
		sandbox.Owner = &s.Owner
	}
	if s.SnapshotID != "" {
		sandbox.SnapshotID = &s.SnapshotID
	}
	if s.Lifecycle != nil {
		sandbox.Lifecycle = new(toLifecycle(*s.Lifecycle))
	}
	if s.Limits != (lifecycle.Limits{}) {
		sandbox.Limits = toSandboxLimits(s.Limits)
	}
	return sandbox
}

func toSandboxLimits(l lifecycle.Limits) *gen.SandboxLimits {
	const nanosPerMilli = 1_000_000
	limits := &gen.SandboxLimits{}
	if l.NanoCPUs > 0 {
		limits.CPUMillis = new((l.NanoCPUs + nanosPerMilli - 1) / nanosPerMilli)
	}
	if l.MemoryBytes > 0 {
		limits.MemoryBytes = &l.MemoryBytes
	}
	if l.GPUs != 0 {
		limits.Gpus = &l.GPUs
	}
	return limits
}

func toStatus(s lifecycle.Status) gen.SandboxStatus {
	return gen.SandboxStatus{
		State:            string(s.State),
		Reason:           string(s.Reason),
		Message:          s.Message,
		LastTransitionAt: s.LastTransitionAt,
		ExitCode:         s.ExitCode,
	}
}

// toMetadata never returns nil: an absent map is an empty object to a client.
func toMetadata(m map[string]string) gen.Metadata {
	if m == nil {
		return gen.Metadata{}
	}
	return m
}

func toPagination(total int, p lifecycle.Page) gen.Pagination {
	pages := (total + p.Size - 1) / p.Size
	return gen.Pagination{
		Page:        p.Number,
		PageSize:    p.Size,
		TotalItems:  total,
		TotalPages:  pages,
		HasNextPage: p.Number < pages,
	}
}

// value returns what p points to, or the zero value.
func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}
