# @summary Package, configuration, tokens and services of the GPU drone provisioner.
#
# A configuration that `provisioner check` rejects stays in /etc/provisioner/staged: the run fails, and the controller
# keeps the files that it has.
#
# @param configuration
#   Directory with provisioner.yaml and its site files, as a `source` of file resources. Any other *.yaml in
#   /etc/provisioner is removed.
# @param tokens
#   Secrets in /etc/provisioner/tokens: by file name the attributes `source` or `content`.
# @param package_file
#   deb or RPM on the node. Without it the package comes from the node's repositories.
# @param services
#   Units to enable and to start, also `provisioner-web` and `provisioner-backup.timer`.
class gpu_drone_provisioner (
  String[1] $configuration,
  Hash[String[1], Hash] $tokens = {},
  Optional[Pattern[/\A\//]] $package_file = undef,
  Array[String[1]] $services = ['provisioner'],
) {
  $etc = '/etc/provisioner'
  $provider = $facts['os']['family'] ? { 'Debian' => 'dpkg', default => 'rpm' }
  $package = $package_file ? {
    undef   => { 'ensure' => 'installed' },
    default => { 'ensure' => 'latest', 'source' => $package_file, 'provider' => $provider },
  }
  package { 'gpu-drone-provisioner': * => $package }
  $tokens.each |$name, $from| {
    file { "${etc}/tokens/${name}":
      owner     => 'provisioner',
      group     => 'provisioner',
      mode      => '0400',
      show_diff => false,
      require   => Package['gpu-drone-provisioner'],
      before    => Exec['check the configuration of gpu-drone-provisioner'],
      *         => $from,
    }
  }
  file { "${etc}/staged":
    ensure  => directory,
    source  => $configuration,
    recurse => true,
    purge   => true,
    force   => true,
    group   => 'provisioner',
    mode    => '0640',
    require => Package['gpu-drone-provisioner'],
  }
  # Relative paths of tokens are the same in the staged files.
  -> file { "${etc}/staged/tokens": ensure => link, target => '../tokens' }
  $same = 'test "$(sha256sum *.yaml)" = "$(cd staged && sha256sum *.yaml)"'
  Exec { cwd => $etc, path => ['/usr/sbin', '/usr/bin', '/sbin', '/bin'], provider => 'shell' }
  # As its account: root would leave files beside the record that the controller cannot write.
  exec { 'check the configuration of gpu-drone-provisioner':
    command => 'runuser -u provisioner -- provisioner check staged/provisioner.yaml',
    unless  => $same,
    require => File["${etc}/staged/tokens"],
  }
  -> exec { 'install the configuration of gpu-drone-provisioner':
    command => 'install -m 640 -g provisioner staged/*.yaml . && for f in *.yaml; do test -e "staged/$f" || rm "$f"; done',
    unless  => $same,
  }
  ~> exec { 'reload gpu-drone-provisioner':
    command     => 'systemctl reload provisioner',
    onlyif      => 'systemctl is-active --quiet provisioner',
    refreshonly => true,
  }
  # After the reload: a process that has just started ends by the signal of a reload.
  -> service { $services: ensure => running, enable => true }
}
