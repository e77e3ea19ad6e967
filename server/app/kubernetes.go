package app

import (
	"context"
	"strings"
	"time"

	"sandbox.internal/server/cluster"
	"sandbox.internal/server/config"
	"sandbox.internal/server/egress"
	"sandbox.internal/server/metrics"
)

// prepareCluster opens nothing: the cluster has the records, and replicas of the service share
// them.
func (a *App) prepareCluster(cfg config.Config, measured *metrics.Metrics) (start func(context.Context) (backend, error)) {
	options := clusterOptions(cfg)
	options.Observer, options.Logger = measured, a.logger
	return func(ctx context.Context) (backend, error) {
		started, err := cluster.Start(ctx, options)
		if err != nil {
			return nil, err
		}
		a.sleeper = started
		return started, nil
	}
}

func clusterOptions(cfg config.Config) cluster.Options {
	return cluster.Options{
		Clock:            time.Now,
		Kubeconfig:       cfg.Kubernetes.KubeconfigPath,
		Namespace:        cfg.Kubernetes.Namespace,
		ExecdImage:       cfg.Runtime.ExecdImage,
		MaxSandboxes:     cfg.Server.MaxSandboxes,
		EgressImage:      cfg.Egress.Image,
		EgressUpstream:   strings.Join(cfg.Egress.Upstream, ","),
		NewSidecarClient: func(host string) cluster.SidecarClient { return egress.New(host) },
		Security: cluster.Security{
			DropCapabilities: cfg.Sandbox.DropCapabilities,
			NoNewPrivileges:  cfg.Sandbox.NoNewPrivileges,
			Unconfined:       cfg.Sandbox.SeccompProfile == config.SeccompUnconfined,
			AppArmorProfile:  cfg.Sandbox.AppArmorProfile,
		},
		Placement:           placement(cfg.Kubernetes),
		RuntimeClasses:      runtimeClasses(cfg.Runtime),
		NoHostVolumes:       !cfg.Storage.HostVolumes,
		AllowedHostPaths:    cfg.Storage.AllowedHostPaths,
		TerminatedRetention: cfg.Server.TerminatedRetention.Duration(),
		PendingFailureTTL:   cfg.Environment.PendingFailureTTL.Duration(),
		ProvisionTimeout:    cfg.Kubernetes.ProvisionTimeout.Duration(),
	}
}

// placement is how the section [kubernetes] places pods. The section has been checked.
func placement(k config.Kubernetes) cluster.Placement {
	placed := cluster.Placement{
		RuntimeClass: k.RuntimeClass, PriorityClass: k.PriorityClass, EphemeralStorage: k.EphemeralStorage, NodeSelector: pairs(k.NodeSelector),
		ServiceAccount: k.ServiceAccount, Labels: pairs(k.PodLabels), Annotations: pairs(k.PodAnnotations), UserNamespaces: !k.HostUsers, RunAsUser: k.RunAsUser,
		Affinity: k.Affinity, CPURequestPercent: k.CPURequestPercent, MemoryRequestPercent: k.MemoryRequestPercent,
	}
	for _, t := range k.Tolerations {
		placed.Tolerations = append(placed.Tolerations, cluster.Toleration{
			Key: t.Key, Operator: t.Operator, Value: t.Value, Effect: t.Effect, Seconds: t.TolerationSeconds,
		})
	}
	return placed
}

// pairs reads what is written as NAME=VALUE.
func pairs(texts []string) map[string]string {
	m := make(map[string]string, len(texts))
	for _, text := range texts {
		name, value, _ := strings.Cut(text, "=")
		m[name] = value
	}
	return m
}
